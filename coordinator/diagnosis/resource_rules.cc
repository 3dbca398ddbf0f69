#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
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
constexpr double kSoon = 20;  // times as many steps as were looked at

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

// Steps until a rank has no memory left, where it grows by so much; nothing where no limit is
// known.
std::optional<double> steps_left(const RuleRoom& room, std::size_t r, double bytes_per_step) {
  const std::vector<double> headroom = present(room.own(r, "headroom"));
  if (headroom.empty() || bytes_per_step <= 0) return std::nullopt;
  return headroom.back() / bytes_per_step;
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
    if (const auto left = steps_left(room, r, slope)) {
      f.detail += concat(" What is left is used up in about ", fixed(*left, 0), " steps.");
      f.evidence.push_back({"steps_left", *left});
      f.ends_run = *left < kSoon * static_cast<double>(room.view.size());
    }
    out.push_back(std::move(f));
    return;
  }
}

// What the budget costs: blocks that are computed again or wait for what was moved away.
struct MemoryWork {
  std::size_t steps = 0;         // in which rank 0 had blocks recomputed or offloaded
  std::size_t offload_only = 0;  // of these, offloaded and none recomputed
  double seconds = 0;            // mean over the ranks
  double offload_seconds = 0;    // of the steps that only offload
};

MemoryWork memory_work(const RuleRoom& room) {
  MemoryWork out;
  const std::vector<double> recomputed = room.own(0, "recomputed_blocks");
  const std::vector<double> offloaded = room.own(0, "offloaded_blocks");
  const auto only_offloads = [&](std::size_t s) {
    return offloaded[s] > 0 && !(recomputed[s] > 0);
  };
  for (std::size_t s = 0; s < room.view.size(); ++s) {
    out.steps += recomputed[s] > 0 || offloaded[s] > 0 ? 1u : 0u;
    out.offload_only += only_offloads(s) ? 1u : 0u;
  }
  for (std::size_t r = 0; r < room.view.ranks.size() && out.steps > 0; ++r) {
    const std::vector<double> seconds = room.own(r, "recompute");
    for (std::size_t s = 0; s < seconds.size(); ++s) {
      if (is_absent(seconds[s])) continue;
      out.seconds += seconds[s] / static_cast<double>(room.view.ranks.size());
      if (only_offloads(s))
        out.offload_seconds += seconds[s] / static_cast<double>(room.view.ranks.size());
    }
  }
  return out;
}

// Of the first rank: the least memory that was left, and the largest peak. Nothing where a step
// does not tell.
struct Headroom {
  double least = 0;
  double peak = 0;
};
std::optional<Headroom> headroom_of(const RuleRoom& room) {
  const std::vector<double> headroom = room.own(0, "headroom");
  const std::vector<double> peaks = room.memory(0, "peak_alloc");
  Headroom out;
  for (std::size_t s = 0; s < headroom.size(); ++s) {
    if (is_absent(headroom[s]) || is_absent(peaks[s])) return std::nullopt;
    out.least = s == 0 ? headroom[s] : std::min(out.least, headroom[s]);
    out.peak = std::max(out.peak, peaks[s]);
  }
  if (headroom.size() < kLeastSteps || out.peak <= 0) return std::nullopt;
  return out;
}

std::string bytes_of(double bytes) {
  return bytes_text(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

// Memory that is saved by work although there is room, or at a high price.
void tight_budget(const RuleRoom& room, Findings& out) {
  const MemoryWork work = memory_work(room);
  const double share = room.share(work.seconds);
  const bool is_often = work.steps >= std::max(kLeastSteps, room.view.size() / 2);
  const std::optional<Headroom> memory = headroom_of(room);
  const bool has_room = memory && memory->least >= 0.5 * memory->peak;
  if (!is_often || work.offload_only * 2 > work.steps || (share < 0.05 && !has_room)) return;
  Finding f = costly(room, "BUDGET.TOO_TIGHT",
                     has_room ? "Activations are recomputed or moved although there is room"
                              : "Keeping to the memory budget takes much time",
                     work.seconds);
  f.detail = concat("In ", work.steps, " steps blocks were recomputed or offloaded, for ",
                    percents(share), " of the time");
  if (memory)
    f.detail += concat(", with at least ", bytes_of(memory->least), " free beside a peak of ",
                       bytes_of(memory->peak));
  f.detail += ".";
  f.suggestion = has_room
                     ? "Raise the memory budget; cox plan says what each size costs in time."
                     : "Make batches smaller, or raise the memory budget where the machine has "
                       "more; cox plan says what each size costs in time.";
  f.evidence = {{"steps", static_cast<double>(work.steps)}, {"work_share", share}};
  if (memory) {
    f.evidence.push_back({"least_headroom_bytes", memory->least});
    f.evidence.push_back({"peak_bytes", memory->peak});
  }
  out.push_back(std::move(f));
}

// A budget that lets a rank come close to the end of its memory.
void loose_budget(const RuleRoom& room, Findings& out) {
  const std::optional<Headroom> memory = headroom_of(room);
  if (!memory || memory->least >= 0.03 * memory->peak) return;
  Finding f;
  f.code = "BUDGET.TOO_LOOSE";
  f.severity = Severity::medium;
  f.title = "Memory is nearly used up";
  f.detail = concat("At its highest, rank ", room.rank(0).rank, " has ", bytes_of(memory->least),
                    " left beside a peak of ", bytes_of(memory->peak), ".");
  f.suggestion = "Lower the memory budget so that blocks are recomputed, or make batches smaller.";
  f.evidence = {{"least_headroom_bytes", memory->least}, {"peak_bytes", memory->peak}};
  out.push_back(std::move(f));
}

void slow_tier(const RuleRoom& room, Findings& out) {
  const MemoryWork work = memory_work(room);
  const double share = room.share(work.offload_seconds);
  if (work.offload_only < std::max(kLeastSteps, room.view.size() / 2) || share < 0.05) return;
  Finding f = costly(room, "OFFLOAD.TIER_SLOW", "Backward waits for offloaded activations",
                     work.offload_seconds);
  f.detail = concat("In ", work.offload_only,
                    " steps blocks were offloaded, and bringing them back "
                    "took ",
                    percents(share), " of the time.");
  f.suggestion =
      "Offload fewer or smaller blocks, recompute them instead (memory.force), or use a "
      "faster tier: pinned memory rather than a disk.";
  f.evidence = {{"steps", static_cast<double>(work.offload_only)}, {"wait_share", share}};
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

// Whether no later change of the same policy has overtaken the reason.
bool is_in_force(const RuleRoom& room, const Reason& reason, std::span<const ReasonCode> changes) {
  return std::ranges::none_of(room.view.run->decisions, [&](const Reason& other) {
    return other.policy == reason.policy && std::ranges::count(changes, other.code) > 0 &&
           other.round > reason.round;
  });
}

bool withholds(const Reason& reason) {
  constexpr std::array kAlways = {ReasonCode::not_capable, ReasonCode::precision_no_evidence,
                                  ReasonCode::precision_not_faster};
  constexpr std::array kVetoes = {ReasonCode::precision_forbidden, ReasonCode::precision_raised};
  if (reason.policy != PolicyKind::precision) return false;
  return std::ranges::count(kAlways, reason.code) > 0 ||
         (std::ranges::count(kVetoes, reason.code) > 0 && reason.outcome == Outcome::vetoed);
}

void withheld_precision(const RuleRoom& room, Findings& out) {
  constexpr std::array kChanges = {ReasonCode::precision_lowered};
  constexpr std::size_t kTold = 3;
  std::vector<std::string> why;
  for (const Reason& reason : room.view.run->decisions) {
    if (withholds(reason) && is_in_force(room, reason, kChanges)) why.push_back(reason.text);
  }
  if (why.empty()) return;
  Finding f;
  f.code = "PRECISION.WITHHELD";
  f.severity = Severity::low;
  f.title = "Blocks compute in more bits than they might";
  for (std::size_t i = 0; i < std::min(kTold, why.size()); ++i)
    f.detail += concat(i == 0 ? "" : "; ", why[i]);
  if (why.size() > kTold) f.detail += concat("; and ", why.size() - kTold, " more");
  f.detail += ".";
  f.suggestion =
      "Where the reason is a setting (precision.*), change it; else nothing is to be won.";
  f.evidence = {{"reasons", static_cast<double>(why.size())}};
  out.push_back(std::move(f));
}

void pinned_shares(const RuleRoom& room, Findings& out) {
  constexpr std::array kLimits = {ReasonCode::shares_limited, ReasonCode::shares_unmeetable};
  constexpr std::array kChanges = {ReasonCode::shares_changed};
  const double waiting = room.seconds_of("waiting");
  if (room.share(waiting) < 0.05) return;
  const Reason* pinned = nullptr;
  for (const Reason& reason : room.view.run->decisions) {
    if (reason.policy == PolicyKind::shares && std::ranges::count(kLimits, reason.code) > 0 &&
        is_in_force(room, reason, kChanges))
      pinned = &reason;
  }
  if (pinned == nullptr) return;
  Finding f =
      costly(room, "SHARES.PINNED", "Memory holds shares of the batch where they are", waiting);
  f.detail = concat("Ranks wait for slower ones for ", percents(room.share(waiting)),
                    " of the time, and shares cannot follow: ", pinned->text, ".");
  f.suggestion =
      "Give the faster ranks more memory (memory.budget), plan activation memory for "
      "them, or lower the minimum share (shares.*).";
  f.evidence = {{"waiting_share", room.share(waiting)}};
  out.push_back(std::move(f));
}

void stalling_saves(const RuleRoom& room, Findings& out) {
  const double seconds = room.seconds_of("saving");
  const auto saves = static_cast<std::size_t>(
      std::ranges::count_if(room.view.saving, [](float each) { return each > 0; }));
  if (saves < 2 || room.share(seconds) < 0.02) return;
  Finding f = costly(room, "SAVE.STALLS", "Saves hold all ranks up", seconds);
  const double each = seconds / static_cast<double>(saves);
  const std::size_t every = room.view.size() / saves;
  f.detail =
      concat(saves, " saves, one in ", every, " steps, took ", seconds_text(each),
             " each while every rank waited: ", percents(room.share(seconds)), " of the time.");
  f.suggestion = "Save more seldom (checkpoint.every_steps), or to a faster disk.";
  f.evidence = {{"saves", static_cast<double>(saves)}, {"seconds_each", each}};
  out.push_back(std::move(f));
}

void lost_rows(const RuleRoom& room, Findings& out) {
  constexpr double kFew = 0.005;  // of the steps; a report comes late now and then
  double dropped = 0;
  for (const RankRecord& rank : room.view.run->ranks) dropped += rank.info.dropped_rows;
  const auto missing = static_cast<double>(room.view.missing);
  if (dropped > 0 || missing > kFew * static_cast<double>(room.view.size())) {
    Finding f;
    f.code = "RECORD.DROPPED";
    f.title = "The record has holes";
    f.detail = concat(fixed(std::max(dropped, missing), 0), " steps were not recorded",
                      dropped > 0 ? ": the disk was full or too slow."
                                  : " by every rank: reports were lost, or rows.");
    f.suggestion = dropped > 0
                       ? "Give the run directory a faster disk or more room."
                       : "Look at the log of the ranks, and at coxswain_report_faults_total.";
    f.evidence = {{"rows", dropped}, {"missing_steps", missing}};
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

constexpr std::array<NamedRule, 11> kResourceRules = {{{"fragmented", fragmented},
                                                       {"leaking", leaking},
                                                       {"tight budget", tight_budget},
                                                       {"loose budget", loose_budget},
                                                       {"slow tier", slow_tier},
                                                       {"flapping plans", flapping_plans},
                                                       {"skipped steps", skipped_steps},
                                                       {"withheld precision", withheld_precision},
                                                       {"pinned shares", pinned_shares},
                                                       {"stalling saves", stalling_saves},
                                                       {"lost rows", lost_rows}}};

}  // namespace

std::span<const NamedRule> resource_rules() {
  return kResourceRules;
}

}  // namespace cox::diagnosis
