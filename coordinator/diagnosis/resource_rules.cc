#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/rule_room.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kMebibyte = 1024 * 1024;

// ---- Memory.

void fragmented(const RuleRoom& room, Findings& out) {
  const std::vector<double> alloc = room.memory(0, "alloc");
  const std::vector<double> reserved = room.memory(0, "reserved");
  std::vector<double> shares;
  double peak = 0;
  for (std::size_t s = 0; s < alloc.size(); ++s) {
    if (is_absent(alloc[s]) || !(reserved[s] > 0)) continue;
    shares.push_back((reserved[s] - alloc[s]) / reserved[s]);
    peak = std::max(peak, alloc[s]);
  }
  const double share = mean_of(shares);
  if (shares.size() < kLeastSteps || peak < 64 * kMebibyte || share < 0.20) return;
  Finding f;
  f.code = "MEMORY.FRAGMENTATION";
  f.severity = share >= 0.40 ? Severity::medium : Severity::low;
  f.title = "Much memory is reserved and not used";
  f.detail =
      concat("On average ", percents(share), " of what the allocator holds is in no tensor; ",
             bytes_text(static_cast<std::uint64_t>(peak)), " are.");
  f.suggestion = "Use expandable segments, and avoid shapes that change from step to step.";
  f.evidence = {{"unused_share", share}};
  out.push_back(std::move(f));
}

// A leak grows through the whole run; a step up at a new plan or batch size does not.
void leaking(const RuleRoom& room, Findings& out) {
  for (std::size_t r = 0; r < room.view.ranks.size(); ++r) {
    const std::vector<double> alloc = present(room.memory(r, "alloc"));
    if (alloc.size() < 20) continue;
    const std::span<const double> all(alloc);
    const EndMedians ends = end_medians(all);
    const double middle =
        median_of({alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 45 / 100),
                   alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 55 / 100 + 1)});
    const double total = ends.last - ends.first;
    const double slope = total / static_cast<double>(alloc.size() - 1);
    const double peak = *std::ranges::max_element(alloc);
    const bool is_steady = middle - ends.first > 0.25 * total && ends.last - middle > 0.25 * total;
    const bool is_large = (slope >= kMebibyte && total >= 0.01 * peak) || total >= 0.10 * peak;
    if (!is_steady || !is_large || total <= 0) continue;
    Finding f;
    f.code = "MEMORY.GROWTH";
    f.severity = Severity::high;
    f.title = "Memory grows from step to step";
    f.detail = concat("Tensors of rank ", room.rank(r).rank, " grow by ",
                      bytes_text(static_cast<std::uint64_t>(slope)), " a step, ",
                      bytes_text(static_cast<std::uint64_t>(total)), " in all.");
    f.suggestion = "Look for tensors that are kept: losses summed with their graph, lists, caches.";
    f.ranks = {room.rank(r).rank};
    f.evidence = {{"bytes_per_step", slope}, {"bytes", total}};
    out.push_back(std::move(f));
    return;
  }
}

// Memory that was saved by work, though there is room.
void loose_budget(const RuleRoom& room, Findings& out) {
  const std::vector<double> recomputed = room.own(0, "recomputed_blocks");
  const std::vector<double> offloaded = room.own(0, "offloaded_blocks");
  const std::vector<double> headroom = room.own(0, "headroom");
  const std::vector<double> peaks = room.memory(0, "peak_alloc");
  std::size_t steps = 0;
  double least = 0;
  double peak = 0;
  for (std::size_t s = 0; s < headroom.size(); ++s) {
    if (is_absent(headroom[s]) || is_absent(peaks[s])) return;
    steps += recomputed[s] > 0 || offloaded[s] > 0 ? 1u : 0u;
    least = s == 0 ? headroom[s] : std::min(least, headroom[s]);
    peak = std::max(peak, peaks[s]);
  }
  if (steps < std::max(kLeastSteps, headroom.size() / 2) || least < 0.5 * peak || peak <= 0) return;
  Finding f;
  f.code = "BUDGET.TOO_LOOSE";
  f.severity = Severity::low;
  f.title = "Activations are recomputed or moved although there is room";
  f.detail = concat("In ", steps, " steps blocks were recomputed or offloaded while at least ",
                    bytes_text(static_cast<std::uint64_t>(least)), " were free beside a peak of ",
                    bytes_text(static_cast<std::uint64_t>(peak)), ".");
  f.suggestion = "Raise the memory budget; cox plan says what each size costs in time.";
  f.evidence = {{"least_headroom_bytes", least}, {"peak_bytes", peak}};
  out.push_back(std::move(f));
}

void tight_budget(const RuleRoom& room, Findings& out) {
  const std::vector<double> headroom = present(room.own(0, "headroom"));
  const std::vector<double> peaks = present(room.memory(0, "peak_alloc"));
  if (headroom.size() < kLeastSteps || peaks.empty()) return;
  const double least = *std::ranges::min_element(headroom);
  const double peak = *std::ranges::max_element(peaks);
  if (peak <= 0 || least >= 0.03 * peak) return;
  Finding f;
  f.code = "BUDGET.TOO_TIGHT";
  f.severity = Severity::medium;
  f.title = "Memory is nearly used up";
  f.detail = concat("At its highest, rank ", room.rank(0).rank, " has ",
                    bytes_text(static_cast<std::uint64_t>(std::max(0.0, least))),
                    " left beside a peak of ", bytes_text(static_cast<std::uint64_t>(peak)), ".");
  f.suggestion = "Lower the memory budget so that blocks are recomputed, or make batches smaller.";
  f.evidence = {{"least_headroom_bytes", least}, {"peak_bytes", peak}};
  out.push_back(std::move(f));
}

// ---- What the coordinator did.

void flapping_plans(const RuleRoom& room, Findings& out) {
  const std::vector<double> plans = room.own(0, "plan");
  if (plans.size() < 40) return;
  std::size_t changes = 0;
  for (std::size_t s = 1; s < plans.size(); ++s) {
    if (!is_absent(plans[s]) && !is_absent(plans[s - 1]) && plans[s] != plans[s - 1]) ++changes;
  }
  const double every =
      static_cast<double>(plans.size()) / static_cast<double>(std::max<std::size_t>(1, changes));
  if (changes < 6 || every > 10) return;
  Finding f;
  f.code = "PLAN.FLAPPING";
  f.severity = Severity::medium;
  f.title = "Plans change all the time";
  f.detail = concat("The plan changed ", changes, " times, every ", fixed(every, 1), " steps.");
  f.suggestion = "cox replay RUN --verbose names the policy; raise its threshold or its interval.";
  f.evidence = {{"changes", static_cast<double>(changes)}};
  out.push_back(std::move(f));
}

void skipped_steps(const RuleRoom& room, Findings& out) {
  const std::vector<double> skipped = room.own(0, "skipped");
  const std::vector<double> scale = room.own(0, "loss_scale");
  std::size_t count = 0;
  std::size_t at_floor = 0;
  double lost = 0;
  for (std::size_t s = 0; s < skipped.size(); ++s) {
    if (skipped[s] != 1) continue;
    ++count;
    at_floor += scale[s] <= 1 ? 1u : 0u;
    lost += room.view.wall(s);
  }
  const double share = static_cast<double>(count) / static_cast<double>(skipped.size());
  if (skipped.size() < 2 * kLeastSteps || count < 3 || share < 0.03) return;
  const bool is_floor = at_floor * 2 > count;
  Finding f = costly(room, is_floor ? "PRECISION.SCALE_AT_FLOOR" : "PRECISION.SKIPPED_STEPS",
                     is_floor ? "Gradients overflow even with the smallest loss scale"
                              : "Many steps are skipped after an overflow",
                     lost);
  f.severity = is_floor ? Severity::high : f.severity;
  f.detail = concat(count, " of ", skipped.size(), " steps were skipped, ", at_floor,
                    " of them with a loss scale of 1 or less.");
  f.suggestion = is_floor
                     ? "fp16 cannot hold these gradients: use bf16 for the blocks that overflow."
                     : "Start from a lower loss scale or let it grow more slowly (loss_scale).";
  f.evidence = {{"skipped", static_cast<double>(count)},
                {"at_floor", static_cast<double>(at_floor)}};
  out.push_back(std::move(f));
}

void lost_rows(const RuleRoom& room, Findings& out) {
  double dropped = 0;
  for (const RankRecord& rank : room.view.run->ranks) dropped += rank.info.dropped_rows;
  if (dropped > 0) {
    Finding f;
    f.code = "RECORD.DROPPED";
    f.title = "The record has holes";
    f.detail =
        concat(fixed(dropped, 0), " steps were not recorded: the disk was full or too slow.");
    f.suggestion = "Give the run directory a faster disk or more room.";
    f.evidence = {{"rows", dropped}};
    out.push_back(std::move(f));
  }
  if (room.view.impossible == 0) return;
  Finding f;
  f.code = "RECORD.IMPOSSIBLE";
  f.title = "Some steps have times that cannot be";
  f.detail =
      concat(room.view.impossible, " steps with times below zero or not finite are left out.");
  f.suggestion = "Look at what wrote the record, and at the clock of the machine.";
  f.evidence = {{"steps", static_cast<double>(room.view.impossible)}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 7> kResourceRules = {{{"fragmented", fragmented},
                                                      {"leaking", leaking},
                                                      {"loose budget", loose_budget},
                                                      {"tight budget", tight_budget},
                                                      {"flapping plans", flapping_plans},
                                                      {"skipped steps", skipped_steps},
                                                      {"lost rows", lost_rows}}};

}  // namespace

std::span<const NamedRule> resource_rules() {
  return kResourceRules;
}

}  // namespace cox::diagnosis
