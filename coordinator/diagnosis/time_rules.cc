#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/published_rules.h"
#include "coordinator/diagnosis/rule_room.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

// ---- Where the time of all ranks went.

void data_stall(const RuleRoom& room, Findings& out) {
  const double data = room.seconds_of("data_stall");
  const double share = room.share(data);
  if (share < 0.20) return;
  Finding f = costly(room, "TIMING.DATALOADER_BOUND", "Steps wait for data", data);
  f.detail = concat("All ranks spend ", percents(share), " of their time (",
                    seconds_text(data / static_cast<double>(room.view.size())),
                    " a step) on fetching data, apart from computing.");
  f.suggestion =
      "Load in more worker threads, prefetch further, and move decoding out of the step.";
  f.evidence = {{"data_share", share}};
  out.push_back(std::move(f));
}

bool recomputes(const RuleRoom& room) {
  const std::vector<double> blocks = room.own(0, "recomputed_blocks");
  return std::ranges::any_of(blocks, [](double v) { return v > 0; });
}

void slow_backward(const RuleRoom& room, Findings& out) {
  const double forward = room.phase_seconds("forward");
  const double backward = room.phase_seconds("backward");
  const double normal = recomputes(room) ? 3 : 2;  // recomputation is one forward pass more
  const double ratio = forward > 0 ? backward / forward : 0;
  if (ratio < normal + 0.5) return;
  Finding f = costly(room, "TIMING.BACKWARD_HEAVY", "The backward pass is slow",
                     backward - normal * forward);
  f.detail =
      concat("Backward takes ", fixed(ratio, 1), " times as long as forward; ", fixed(normal, 0),
             " times is normal", normal > 2 ? " with recomputation." : " without recomputation.");
  f.suggestion =
      "Look for graphs that are kept or built twice, operators whose gradients are not fused, and "
      "recomputation that nobody asked for; cox ops shows FLOPs by block.";
  f.evidence = {{"backward_by_forward", ratio}, {"normal", normal}};
  out.push_back(std::move(f));
}

void slow_optimizer(const RuleRoom& room, Findings& out) {
  const double seconds = room.phase_seconds("optimizer");
  const double share = room.share(seconds);
  if (share < 0.15) return;
  Finding f = costly(room, "TIMING.OPTIMIZER_HEAVY", "The optimizer step is slow",
                     seconds - 0.05 * room.budget.wall_seconds);
  f.detail = concat("The optimizer takes ", percents(share), " of the time; 5 % is common.");
  f.suggestion = "Use a fused or multi-tensor optimizer, or shard its state over the ranks.";
  f.evidence = {{"optimizer_share", share}};
  out.push_back(std::move(f));
}

void communication(const RuleRoom& room, Findings& out) {
  const double seconds = room.seconds_of("exposed_communication");
  const double share = room.share(seconds);
  if (room.view.ranks.size() < 2 || share < 0.20) return;
  Finding f = costly(room, "DIST.COMM_BOUND", "Communication takes much of the step", seconds);
  f.detail =
      concat("Ranks spend ", percents(share),
             " of their time on communication that nothing hides; waiting for slower ranks (",
             percents(room.share(room.seconds_of("waiting"))), ") is not in it.");
  f.suggestion =
      "Reduce while backward still runs (buckets), send gradients in 16 bits, accumulate over "
      "micro-batches, or check the network between the nodes.";
  f.evidence = {{"communication_share", share}};
  out.push_back(std::move(f));
}

void exposed_kernels(const RuleRoom& room, Findings& out) {
  if (!room.trace || room.trace->exposed_of_devices() < 0.05) return;
  const KernelTrace& t = *room.trace;
  const double share = t.exposed_of_devices();
  Finding f = costly(room, "DIST.EXPOSED_COMM", "Computation does not hide communication",
                     share * room.budget.wall_seconds);
  f.detail = concat("In the trace ", percents(share),
                    t.devices.size() > 1 ? concat(" of the time of ", t.devices.size(), " devices")
                                         : std::string(" of the time"),
                    " is communication with no kernel beside it; ", percents(t.overlap()), " of ",
                    seconds_text(t.communication_seconds), " is hidden.");
  f.suggestion = "Reduce gradients in smaller buckets and earlier, so that backward still runs.";
  f.evidence = {{"exposed_share", share}, {"overlap", t.overlap()}};
  out.push_back(std::move(f));
}

// As published; what a pipeline idles beyond what it must can be won back.
void pipeline_bubble(const RuleRoom& room, Findings& out) {
  if (!room.pipeline) return;
  for (Finding& f : published_findings(*room.pipeline)) {
    f.evidence = {{"bubble", room.pipeline->bubble}};
    if (const auto excess = room.pipeline->excess()) {
      f.evidence.push_back({"ideal_bubble", *room.pipeline->ideal_bubble});
      f.cost_seconds = *excess * room.budget.wall_seconds;
      f.cost_share = *excess;
    }
    out.push_back(std::move(f));
  }
}

// Steps that took more than 1.5 times those around them.
void uneven_steps(const RuleRoom& room, Findings& out) {
  const std::size_t n = room.view.size();
  std::vector<double> walls;
  for (std::size_t s = 0; s < n; ++s) walls.push_back(room.view.wall(s));
  const double usual = median_of(walls);
  std::size_t count = 0;
  double lost = 0;
  for (const double wall : walls) {
    if (wall <= 1.5 * usual) continue;
    ++count;
    lost += wall - usual;
  }
  const bool is_rule = count >= std::max<std::size_t>(3, n / 25);
  if (n < 2 * kLeastSteps || !is_rule || room.share(lost) < 0.02) return;
  Finding f = costly(room, "TIMING.JITTER", "Some steps take much longer than others", lost);
  f.detail = concat(count, " of ", n, " steps take more than 1.5 times the median of ",
                    seconds_text(usual), ".");
  f.suggestion =
      "Look at what happens in those steps: logging, saves, evaluation, batches of other lengths, "
      "or other programs on the machine.";
  f.evidence = {{"slow_steps", static_cast<double>(count)}, {"median_seconds", usual}};
  out.push_back(std::move(f));
}

void low_utilization(const RuleRoom& room, Findings& out) {
  if (!room.budget.mfu || *room.budget.mfu >= 0.50) return;
  const double overhead = room.seconds_of("compute_overhead");
  if (room.share(overhead) < 0.10) return;
  Finding f =
      costly(room, "EFFICIENCY.LOW_MFU", "The device does little of what it could", overhead);
  f.severity = *room.budget.mfu < 0.30 ? Severity::high : Severity::medium;
  f.detail = concat("Model FLOPs take ", percents(*room.budget.mfu),
                    " of what the device could do in that time; ", percents(room.share(overhead)),
                    " of the time goes into kernels below its peak.");
  f.suggestion =
      "Use 16-bit precision, larger batches and fused kernels; cox ops names the slow ones.";
  f.evidence = {{"mfu", *room.budget.mfu}};
  out.push_back(std::move(f));
}

// ---- Ranks beside each other.

double cost_of_ranks(const RunView& view, const std::set<std::size_t>& slow) {
  double lost = 0;
  for (std::size_t s = 0; s < view.size(); ++s) {
    float others = 0;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      if (!slow.contains(r)) others = std::max(others, view.ranks[r].work[s]);
    }
    lost += static_cast<double>(view.longest_work[s] - others);
  }
  return lost;
}

std::string ranks_of(const RunView& view, const std::set<std::size_t>& ranks) {
  std::vector<std::size_t> numbers;
  for (const std::size_t r : ranks)
    numbers.push_back(static_cast<std::size_t>(view.run->ranks[r].rank));
  return ranks_text(numbers, view.ranks.size());
}

std::string capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

// Slow ranks that are told as one: all ranks of a machine that has several, or a single rank.
struct SlowGroup {
  bool is_host = false;
  std::vector<SlowRank> ranks;
};

// Nothing about hosts where the record does not tell them, or there is one.
std::map<std::int32_t, std::size_t> ranks_on_hosts(const RunRecord& run) {
  std::map<std::int32_t, std::size_t> count;
  for (const RankRecord& rank : run.ranks) ++count[rank.info.node];
  if (count.size() < 2 || count.contains(-1)) count.clear();
  return count;
}

std::vector<SlowGroup> groups_of(const RunRecord& run, const std::vector<SlowRank>& slow) {
  std::map<std::int32_t, std::vector<SlowRank>> on_host;
  for (const SlowRank& s : slow) on_host[run.ranks[s.rank].info.node].push_back(s);
  const std::map<std::int32_t, std::size_t> all = ranks_on_hosts(run);
  std::vector<SlowGroup> out;
  for (auto& [host, ranks] : on_host) {
    const auto count = all.find(host);
    if (count != all.end() && count->second == ranks.size() && ranks.size() > 1) {
      out.push_back({true, std::move(ranks)});
    } else {
      for (SlowRank& s : ranks) out.push_back({false, {std::move(s)}});
    }
  }
  return out;
}

// The rank in the middle, which speaks for the group.
const SlowRank& usual_of(const SlowGroup& group) {
  std::vector<const SlowRank*> ranks;
  for (const SlowRank& s : group.ranks) ranks.push_back(&s);
  std::ranges::sort(ranks, {}, &SlowRank::slowdown);
  return *ranks[ranks.size() / 2];
}

std::set<std::size_t> indices_of(const std::vector<SlowRank>& slow) {
  std::set<std::size_t> out;
  for (const SlowRank& s : slow) out.insert(s.rank);
  return out;
}

// "the host of ranks 4-7 takes 31.0 % longer than most, mostly in forward (steps 40 to 80)".
std::string sentence_of(const RuleRoom& room, const SlowGroup& group) {
  const SlowRank& s = usual_of(group);
  const std::string ranks = ranks_of(room.view, indices_of(group.ranks));
  std::string text =
      concat(group.is_host ? "the host of " : "", ranks, " takes ", percents(s.slowdown),
             " longer than most", group.is_host ? " (the middle one of its ranks)" : "",
             ", mostly in ", s.phase);
  const bool is_all = s.begin <= room.view.size() / 20 && s.end >= room.view.size() * 19 / 20;
  if (!is_all)
    text += concat(" (steps ", room.view.steps[s.begin], " to ", room.view.steps[s.end - 1], ")");
  return text;
}

std::string slow_title(const RuleRoom& room, const std::vector<SlowGroup>& groups,
                       const std::vector<SlowRank>& slow) {
  const std::string ranks = ranks_of(room.view, indices_of(slow));
  if (groups.size() == 1 && groups[0].is_host)
    return concat("The host of ", ranks, " is slower than the others");
  return capital(ranks) + (slow.size() == 1 ? " is" : " are") + " slower than the others";
}

Finding slow_finding(const RuleRoom& room, const std::vector<SlowRank>& slow) {
  const std::vector<SlowGroup> groups = groups_of(*room.view.run, slow);
  Finding f = costly(room, "DIST.STRAGGLER", slow_title(room, groups, slow),
                     cost_of_ranks(room.view, indices_of(slow)));
  std::string each;
  for (const SlowGroup& group : groups)
    each += (each.empty() ? "" : "; ") + sentence_of(room, group);
  for (const SlowRank& s : slow) {
    const std::int32_t number = room.rank(s.rank).rank;
    f.ranks.push_back(number);
    f.evidence.push_back({concat("slowdown_of_rank_", number), s.slowdown});
  }
  f.detail = capital(each) + ". The other ranks wait for that in every step.";
  const bool has_host = std::ranges::any_of(groups, &SlowGroup::is_host);
  f.suggestion =
      slow.front().phase == "data"
          ? "Look at the data loading of these ranks: their disk, their shard, their CPU."
      : has_host
          ? "Look at that host as a whole: other programs, heat, clocks, memory, its network; "
            "or give its ranks a smaller share (shares.mode=on)."
          : "Look at these hosts: other programs, heat, clocks, placement of the process; "
            "or give these ranks a smaller share (shares.mode=on).";
  return f;
}

// A rank that is late is told as such; what others lose by turns is imbalance.
void ranks_apart(const RuleRoom& room, Findings& out) {
  const RunView& view = room.view;
  const std::vector<SlowRank> slow = slow_ranks(view);
  const std::set<std::size_t> named = indices_of(slow);
  if (!slow.empty()) out.push_back(slow_finding(room, slow));
  if (view.ranks.size() - named.size() < 2) return;
  double lost = 0;
  for (std::size_t s = 0; s < view.size(); ++s) {
    double most = 0;
    double sum = 0;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      if (named.contains(r)) continue;
      most = std::max(most, static_cast<double>(view.ranks[r].work[s]));
      sum += static_cast<double>(view.ranks[r].work[s]);
    }
    lost += most - sum / static_cast<double>(view.ranks.size() - named.size());
  }
  if (room.share(lost) < 0.08) return;
  Finding f = costly(room, "DIST.LOAD_IMBALANCE", "Ranks take turns in being late", lost);
  f.detail =
      concat("No one rank is slow in it, but in each step the last one is later than the mean: ",
             percents(room.share(lost)), " of the time is waiting for it.");
  f.suggestion =
      "Even out the work in a step: sort samples by length, or count tokens, not samples.";
  f.evidence = {{"lost_share", room.share(lost)}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 9> kTimeRules = {{{"data stall", data_stall},
                                                  {"slow backward", slow_backward},
                                                  {"slow optimizer", slow_optimizer},
                                                  {"communication", communication},
                                                  {"exposed kernels", exposed_kernels},
                                                  {"pipeline bubble", pipeline_bubble},
                                                  {"uneven steps", uneven_steps},
                                                  {"low utilization", low_utilization},
                                                  {"ranks apart", ranks_apart}}};

}  // namespace

std::span<const NamedRule> time_rules() {
  return kTimeRules;
}

}  // namespace cox::diagnosis
