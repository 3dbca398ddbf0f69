#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/published_rules.h"
#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {

// RankDelays has the slow ranks, and the job's lost seconds in each step: by slow ranks, and by
// ranks that are late by turns.
struct RankDelays {
  std::vector<SlowRank> slow;
  Ranks slow_ranks;  // their indexes
  StepSeconds of_slow;
  StepSeconds by_turns;
};

namespace {

Ranks indices_of(const std::vector<SlowRank>& slow) {
  Ranks out;
  for (const SlowRank& s : slow) out.insert(s.rank);
  return out;
}

// Returns the longest work in a step of the ranks for which `is_left_out(rank)` is false.
float longest_of(const Work& work, std::size_t step, const auto& is_left_out) {
  float out = 0;
  for (std::size_t r = 0; r < work.seconds.size(); ++r) {
    if (!is_left_out(r)) out = std::max(out, work.seconds[r][step]);
  }
  return out;
}

// A rank counts as slow in its stretch of steps only. A step in which all ranks are slow counts
// nothing.
StepSeconds lost_by_slow(const Work& work, const std::vector<SlowRank>& slow) {
  if (slow.empty()) return {};
  StepSeconds out(work.seconds[0].size(), 0);
  for (std::size_t s = 0; s < out.size(); ++s) {
    Ranks now;
    for (const SlowRank& each : slow) {
      if (s >= each.begin && s < each.end) now.insert(each.rank);
    }
    if (now.empty() || now.size() == work.seconds.size()) continue;
    const float all = longest_of(work, s, [](std::size_t) { return false; });
    const float others = longest_of(work, s, [&](std::size_t r) { return now.contains(r); });
    out[s] = static_cast<double>(all - others);
  }
  return out;
}

// Returns the mean wait for the last rank in each step, among the ranks not left out.
StepSeconds lost_by_turns(const Work& work, const Ranks& left_out) {
  const std::size_t ranks = work.seconds.size() - left_out.size();
  if (ranks < 2) return {};
  StepSeconds out(work.seconds[0].size(), 0);
  for (std::size_t s = 0; s < out.size(); ++s) {
    double sum = 0;
    for (std::size_t r = 0; r < work.seconds.size(); ++r)
      sum += left_out.contains(r) ? 0 : static_cast<double>(work.seconds[r][s]);
    const float longest = longest_of(work, s, [&](std::size_t r) { return left_out.contains(r); });
    out[s] = static_cast<double>(longest) - sum / static_cast<double>(ranks);
  }
  return out;
}

const RankDelays& delays_of(const RuleInput& input) {
  if (!input.rank_delays) {
    const Work work = work_of(input.view, ranks_slowed_by_memory(input));
    auto slow = slow_ranks(input.view, work);
    const Ranks indices = indices_of(slow);
    StepSeconds of_slow = lost_by_slow(work, slow);
    input.rank_delays = std::make_shared<const RankDelays>(
        RankDelays{std::move(slow), indices, std::move(of_slow), lost_by_turns(work, indices)});
  }
  return *input.rank_delays;
}

// ---- Time of all ranks.

void data_stall(const RuleInput& input, Findings& out) {
  const double data = input.seconds_of("data_stall");
  const double share = input.share(data);
  if (share < 0.20) return;
  const Ranks& slow = delays_of(input).slow_ranks;
  Finding f = costly(input, "TIMING.DATALOADER_BOUND", "Steps wait for data",
                     input.phase_seconds("data", slow));
  input.counted.add(f, input.phase_of_steps("data", slow));
  f.detail = fmt::format(
      "All ranks spend {} of their time ({} a step) on fetching data, apart from computing.",
      percents(share), seconds_text(data / static_cast<double>(input.view.size())));
  f.suggestion =
      "Load in more worker threads, prefetch further, and move decoding out of the step.";
  f.evidence = {{"data_share", share}};
  out.push_back(std::move(f));
}

// Returns the fraction of ranks that recompute blocks.
double recomputing_part(const RuleInput& input) {
  std::size_t ranks = 0;
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    const std::vector<double> blocks = input.own(r, "recomputed_blocks");
    ranks += std::ranges::any_of(blocks, [](double v) { return v > 0; }) ? 1u : 0u;
  }
  return static_cast<double>(ranks) / static_cast<double>(input.view.ranks.size());
}

// Returns the seconds of recomputation in each step that another finding counts. One forward pass
// for the fraction `part` of the ranks is normal and excluded.
StepSeconds told_beyond(const RuleInput& input, double part) {
  const Ranks& slow = delays_of(input).slow_ranks;
  StepSeconds out = told_recompute(input, slow);
  const StepSeconds forward = input.phase_of_steps("forward", slow);
  for (std::size_t s = 0; s < out.size(); ++s) out[s] = std::max(0.0, out[s] - part * forward[s]);
  return out;
}

void slow_backward(const RuleInput& input, Findings& out) {
  const double forward = input.phase_seconds("forward");
  const double backward = input.phase_seconds("backward");
  const double ratio = forward > 0 ? backward / forward : 0;
  if (ratio < 2.5) return;
  const double normal = 2 + recomputing_part(input);  // recomputation is one forward pass more
  if (ratio < normal + 0.5) return;
  const Ranks& slow = delays_of(input).slow_ranks;
  const StepSeconds told = told_beyond(input, normal - 2);
  const double lost = input.phase_seconds("backward", slow) -
                      normal * input.phase_seconds("forward", slow) - sum_of(told);
  if (lost <= 0) return;  // other findings count all seconds
  Finding f = costly(input, "TIMING.BACKWARD_HEAVY", "The backward pass is slow", lost);
  StepSeconds of_steps = input.phase_of_steps("backward", slow);
  const StepSeconds of_forward = input.phase_of_steps("forward", slow);
  for (std::size_t s = 0; s < of_steps.size(); ++s) of_steps[s] -= normal * of_forward[s] + told[s];
  input.counted.add(f, of_steps);
  f.detail = fmt::format("Backward takes {} times as long as forward; {:.3g} times is normal{}",
                         fixed(ratio, 1), normal,
                         normal > 2 ? " with recomputation." : " without recomputation.");
  f.suggestion =
      "Search for graphs that are kept or built twice, operators whose gradients are not fused, "
      "and "
      "unintended recomputation; cox ops shows FLOPs by block.";
  f.evidence = {{"backward_by_forward", ratio}, {"normal", normal}};
  out.push_back(std::move(f));
}

void slow_optimizer(const RuleInput& input, Findings& out) {
  const double seconds = input.phase_seconds("optimizer");
  const double share = input.share(seconds);
  if (share < 0.15) return;
  const Ranks& slow = delays_of(input).slow_ranks;
  const double common = 0.05 * input.budget.wall_seconds;
  Finding f = costly(input, "TIMING.OPTIMIZER_HEAVY", "The optimizer step is slow",
                     std::max(0.0, input.phase_seconds("optimizer", slow) - common));
  StepSeconds of_steps = input.phase_of_steps("optimizer", slow);
  for (double& step : of_steps)
    step = std::max(0.0, step - common / static_cast<double>(input.view.size()));
  input.counted.add(f, of_steps);
  f.detail = fmt::format("The optimizer takes {} of the time; 5 % is common.", percents(share));
  f.suggestion = "Use a fused or multi-tensor optimizer, or shard its state over the ranks.";
  f.evidence = {{"optimizer_share", share}};
  out.push_back(std::move(f));
}

// Returns the fraction of the gradient buckets' time that backward hid; nullopt if no rank recorded
// buckets.
std::optional<double> hidden_by_backward(const RuleInput& input) {
  constexpr double kMostSeconds = 1e9;  // in a step
  double all = 0;
  double exposed = 0;
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    const std::vector<double> seconds = input.own(r, "reduction");
    const std::vector<double> behind = input.own(r, "reduction_exposed");
    for (std::size_t s = 0; s < seconds.size(); ++s) {
      const bool is_possible =
          seconds[s] <= kMostSeconds && behind[s] >= 0 && behind[s] <= seconds[s];
      if (!is_possible) continue;
      all += seconds[s];
      exposed += behind[s];
    }
  }
  return all > 0 ? std::optional(1 - exposed / all) : std::nullopt;
}

void communication(const RuleInput& input, Findings& out) {
  const double seconds = input.seconds_of("exposed_communication");
  const double share = input.share(seconds);
  if (input.view.ranks.size() < 2 || share < 0.20) return;
  Finding f = costly(input, "DIST.COMM_BOUND", "Communication takes much of the step", seconds);
  input.counted.add(f, mean_of_steps(input.view, &RunView::transfer));
  f.detail = fmt::format(
      "Ranks spend {} of their time on communication that nothing hides; waiting for slower ranks "
      "({}) is not included.",
      percents(share), percents(input.share(input.seconds_of("waiting"))));
  const auto hidden = hidden_by_backward(input);
  f.suggestion = fmt::format(
      "{} gradients in 16 bits, accumulate over micro-batches, or check the network between the "
      "nodes.",
      hidden && *hidden >= 0.5 ? "Send" : "Reduce while backward still runs (buckets), send");
  f.evidence = {{"communication_share", share}};
  if (hidden) {
    f.detail +=
        fmt::format(" Of the time for which gradient buckets are under way, backward hides {}.",
                    percents(*hidden));
    f.evidence.push_back({"hidden_share", *hidden});
  }
  out.push_back(std::move(f));
}

void exposed_kernels(const RuleInput& input, Findings& out) {
  if (!input.trace || input.trace->exposed_of_devices() < 0.05) return;
  const KernelTrace& t = *input.trace;
  const double share = t.exposed_of_devices();
  Finding f = costly(input, "DIST.EXPOSED_COMM", "Computation does not hide communication",
                     share * (input.budget.wall_seconds - input.seconds_of("saving")));
  StepSeconds of_steps;
  for (std::size_t s = 0; s < input.view.size(); ++s)
    of_steps.push_back(share * input.view.wall(s));
  count_rest(input, {"DIST.COMM_BOUND"}, f, std::move(of_steps));
  f.detail = fmt::format(
      "In the trace {}{} is communication with no kernel beside it; {} of {} is hidden.",
      percents(share),
      t.devices.size() > 1 ? fmt::format(" of the time of {} devices", t.devices.size())
                           : std::string(" of the time"),
      percents(t.overlap()), seconds_text(t.communication_seconds));
  f.suggestion = "Reduce gradients in smaller buckets and earlier, so that backward still runs.";
  f.evidence = {{"exposed_share", share}, {"overlap", t.overlap()}};
  if (t.devices.size() > 1) {
    const auto worst = std::ranges::max_element(t.devices, {}, &DeviceTrace::exposed_seconds);
    const double most = worst->exposed_seconds / t.wall_seconds;
    f.detail +=
        fmt::format(" Device {} has most of it, {} of its time.", worst->device, percents(most));
    f.evidence.push_back({"worst_device", static_cast<double>(worst->device)});
    f.evidence.push_back({"worst_exposed_share", most});
  }
  out.push_back(std::move(f));
}

// Has the published meaning. Only idle time beyond the ideal bubble can be won back.
void pipeline_bubble(const RuleInput& input, Findings& out) {
  if (!input.pipeline) return;
  for (Finding& f : published_findings(*input.pipeline)) {
    f.evidence = {{"bubble", input.pipeline->bubble}};
    if (const auto excess = input.pipeline->excess()) {
      f.evidence.push_back({"ideal_bubble", *input.pipeline->ideal_bubble});
      f.cost_seconds = *excess * input.budget.wall_seconds;
      f.cost_share = *excess;
    }
    out.push_back(std::move(f));
  }
}

// Reports steps of more than 1.5 times the median step, without seconds that other findings count.
void uneven_steps(const RuleInput& input, Findings& out) {
  const std::size_t n = input.view.size();
  std::vector<double> walls;
  for (std::size_t s = 0; s < n; ++s) walls.push_back(input.view.wall(s));
  const double usual = median_of(walls);
  std::size_t count = 0;
  StepSeconds losses(n, 0);
  for (std::size_t s = 0; s < n; ++s) {
    const double left = walls[s] - input.counted.in_step(s);
    if (left <= 1.5 * usual) continue;
    ++count;
    losses[s] = left - usual;
  }
  const double lost = sum_of(losses);
  const bool is_rule = count >= std::max<std::size_t>(3, n / 25);
  if (n < 2 * kLeastSteps || !is_rule || input.share(lost) < 0.02) return;
  Finding f = costly(input, "TIMING.JITTER", "Some steps take much longer than others", lost);
  f.detail = fmt::format("{} of {} steps take more than 1.5 times the median of {}{}", count, n,
                         seconds_text(usual),
                         input.counted.has_any() ? ", without what other findings count." : ".");
  f.suggestion =
      "Check what happens in those steps: logging, saves, evaluation, batches of other lengths, "
      "or other programs on the machine.";
  f.evidence = {{"slow_steps", static_cast<double>(count)}, {"median_seconds", usual}};
  input.counted.add(f, std::move(losses));
  out.push_back(std::move(f));
}

constexpr std::array kComputing = {"forward", "backward", "compute", "optimizer"};

// Returns the extra compute seconds of slow ranks, mean over the ranks.
double longer_by_slow(const RuleInput& input) {
  const Ranks& slow = delays_of(input).slow_ranks;
  double sum = 0;
  for (const char* phase : kComputing)
    sum += input.phase_seconds(phase) - input.phase_seconds(phase, slow);
  return sum;
}

// Returns the compute seconds beyond the model's FLOPs at the device's peak, without the extra
// seconds of slow ranks.
StepSeconds overhead_of_steps(const RuleInput& input) {
  const Ranks& slow = delays_of(input).slow_ranks;
  StepSeconds out(input.view.size(), 0);
  for (const char* phase : kComputing) {
    const StepSeconds of_phase = input.phase_of_steps(phase, slow);
    for (std::size_t s = 0; s < out.size(); ++s) out[s] += of_phase[s];
  }
  const double useful = input.seconds_of("useful_compute") + input.seconds_of("recompute");
  for (double& step : out)
    step = std::max(0.0, step - useful / static_cast<double>(input.view.size()));
  return out;
}

void low_utilization(const RuleInput& input, Findings& out) {
  if (!input.budget.mfu || *input.budget.mfu >= 0.50) return;
  const double overhead = input.seconds_of("compute_overhead");
  if (input.share(overhead) < 0.10) return;
  Finding f = costly(input, "EFFICIENCY.LOW_MFU", "The device does little of what it could",
                     overhead - longer_by_slow(input));
  count_rest(input, {"TIMING.BACKWARD_HEAVY", "TIMING.OPTIMIZER_HEAVY", "TIMING.JITTER"}, f,
             overhead_of_steps(input));
  f.severity = *input.budget.mfu < 0.30 ? Severity::high : Severity::medium;
  f.detail = fmt::format(
      "Model FLOPs take {} of what the device could do in that time; {} of the time goes into "
      "kernels below its peak.",
      percents(*input.budget.mfu), percents(input.share(overhead)));
  f.suggestion =
      "Use 16-bit precision, larger batches and fused kernels; cox ops names the slow ones.";
  f.evidence = {{"mfu", *input.budget.mfu}};
  out.push_back(std::move(f));
}

// ---- Differences between ranks.

std::string capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

// Slow ranks in one finding: those of a machine, or a single rank.
struct SlowGroup {
  std::vector<SlowRank> ranks;
  Ranks host{};  // all ranks of the machine; empty: a single rank

  bool is_host() const { return !host.empty(); }
};

// Returns the ranks of each host; empty for one host or an unknown one.
std::map<std::int32_t, Ranks> ranks_on_hosts(const RunRecord& run) {
  std::map<std::int32_t, Ranks> hosts;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) hosts[run.ranks[r].info.node].insert(r);
  if (hosts.size() < 2 || hosts.contains(-1)) hosts.clear();
  return hosts;
}

// Returns whether a host is slow: all of its ranks are, or two thirds of at least four, and no rank
// elsewhere.
bool is_slow_host(const Ranks& host, std::size_t slow_on_it, std::size_t all_slow) {
  if (slow_on_it == host.size()) return slow_on_it > 1;
  return host.size() >= 4 && 3 * slow_on_it >= 2 * host.size() && slow_on_it == all_slow;
}

std::vector<SlowGroup> groups_of(const RunRecord& run, const std::vector<SlowRank>& slow) {
  std::map<std::int32_t, std::vector<SlowRank>> on_host;
  for (const SlowRank& s : slow) on_host[run.ranks[s.rank].info.node].push_back(s);
  const std::map<std::int32_t, Ranks> hosts = ranks_on_hosts(run);
  std::vector<SlowGroup> out;
  for (auto& [number, ranks] : on_host) {
    const auto host = hosts.find(number);
    if (host != hosts.end() && is_slow_host(host->second, ranks.size(), slow.size())) {
      out.push_back({std::move(ranks), host->second});
    } else {
      for (SlowRank& s : ranks) out.push_back({{std::move(s)}});
    }
  }
  return out;
}

// Returns the middle rank of the group, which represents the group.
const SlowRank& usual_of(const SlowGroup& group) {
  std::vector<const SlowRank*> ranks;
  for (const SlowRank& s : group.ranks) ranks.push_back(&s);
  std::ranges::sort(ranks, {}, &SlowRank::slowdown);
  return *ranks[ranks.size() / 2];
}

// Returns "rank 3", "the host of ranks 4-7", "the host of ranks 4-7, but for rank 6,".
std::string name_of(const RuleInput& input, const SlowGroup& group) {
  const Ranks slow = indices_of(group.ranks);
  if (!group.is_host()) return ranks_named(input.view, slow);
  Ranks others;
  std::ranges::set_difference(group.host, slow, std::inserter(others, others.end()));
  return fmt::format(
      "the host of {}{}", ranks_named(input.view, group.host),
      others.empty() ? "" : fmt::format(", but for {},", ranks_named(input.view, others)));
}

// Returns "the host of ranks 4-7 takes 31.0 % longer than most, mostly in forward (steps 40 to
// 80)".
std::string sentence_of(const RuleInput& input, const SlowGroup& group) {
  const SlowRank& s = usual_of(group);
  std::string text = fmt::format(
      "{} takes {} longer than most{}, mostly in {}", name_of(input, group), percents(s.slowdown),
      group.is_host() ? " (the middle one of its slow ranks)" : "", s.phase);
  const bool is_all = s.begin <= input.view.size() / 20 && s.end >= input.view.size() * 19 / 20;
  if (!is_all)
    text +=
        fmt::format(" (steps {} to {})", input.view.steps[s.begin], input.view.steps[s.end - 1]);
  return text;
}

std::string slow_title(const RuleInput& input, const std::vector<SlowGroup>& groups,
                       const std::vector<SlowRank>& slow) {
  const bool is_host = groups.size() == 1 && groups[0].is_host();
  const std::string who =
      is_host ? name_of(input, groups[0]) : ranks_named(input.view, indices_of(slow));
  return fmt::format("{}{} slower than the others", capital(who),
                     is_host || slow.size() == 1 ? " is" : " are");
}

const char* slow_advice(const std::vector<SlowGroup>& groups) {
  const std::string& phase = groups.front().ranks.front().phase;
  if (phase == "data")
    return "Check the data loading of these ranks: their disk, their shard, their CPU.";
  if (phase == kRecomputePhase)
    return "Raise the memory budget of these ranks (memory.budget), which recompute activations or "
           "wait for them more than other ranks do, or give them a smaller share (shares.mode=on).";
  if (std::ranges::any_of(groups, &SlowGroup::is_host))
    return "Check that host as a whole: other programs, heat, clocks, memory, its network; "
           "or give its ranks a smaller share (shares.mode=on).";
  return "Check these hosts: other programs, heat, clocks, placement of the process; "
         "or give these ranks a smaller share (shares.mode=on).";
}

Finding slow_finding(const RuleInput& input, const RankDelays& delays) {
  const std::vector<SlowRank>& slow = delays.slow;
  const std::vector<SlowGroup> groups = groups_of(*input.view.run, slow);
  Finding f =
      costly(input, "DIST.STRAGGLER", slow_title(input, groups, slow), sum_of(delays.of_slow));
  std::string each;
  for (const SlowGroup& group : groups)
    each += (each.empty() ? "" : "; ") + sentence_of(input, group);
  for (const SlowRank& s : slow) {
    const std::int32_t number = input.rank(s.rank).rank;
    f.ranks.push_back(number);
    f.evidence.push_back({fmt::format("slowdown_of_rank_{}", number), s.slowdown});
  }
  f.detail = fmt::format("{}. The other ranks wait for these ranks in every step.", capital(each));
  f.suggestion = slow_advice(groups);
  return f;
}

// Reports slow ranks one by one, and time lost by turns as imbalance.
void ranks_apart(const RuleInput& input, Findings& out) {
  const RankDelays& delays = delays_of(input);
  if (!delays.slow.empty()) {
    out.push_back(slow_finding(input, delays));
    input.counted.add(out.back(), delays.of_slow);
  }
  const double lost = sum_of(delays.by_turns);
  if (input.share(lost) < 0.08) return;
  Finding f = costly(input, "DIST.LOAD_IMBALANCE", "Ranks take turns in being late", lost);
  f.detail = fmt::format(
      "No single rank is always slow, but in each step the last rank is later than the mean: {} of "
      "the time is spent waiting for the last rank.",
      percents(input.share(lost)));
  f.suggestion =
      "Even out the work in a step: sort samples by length, or count tokens, not samples.";
  f.evidence = {{"lost_share", input.share(lost)}};
  input.counted.add(f, delays.by_turns);
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 7> kTimeRules = {{{"ranks apart", ranks_apart},
                                                  {"data stall", data_stall},
                                                  {"slow backward", slow_backward},
                                                  {"slow optimizer", slow_optimizer},
                                                  {"communication", communication},
                                                  {"pipeline bubble", pipeline_bubble},
                                                  {"exposed kernels", exposed_kernels}}};
constexpr std::size_t kFileRules = 2;  // the last ones of the list above

constexpr std::array<NamedRule, 2> kRestRules = {
    {{"uneven steps", uneven_steps}, {"low utilization", low_utilization}}};

}  // namespace

std::span<const NamedRule> time_rules() {
  return kTimeRules;
}

std::span<const NamedRule> file_rules() {
  return time_rules().last(kFileRules);
}

std::span<const NamedRule> rest_rules() {
  return kRestRules;
}

}  // namespace cox::diagnosis
