#include "coordinator/diagnosis/run_phases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr std::size_t kReduction = kRunPhases.size() - 1;
constexpr double kMostSeconds = 1e9;

using Seconds = std::array<double, kRunPhases.size()>;
using Steps = std::map<std::int64_t, Seconds>;

Result<Steps> steps_of(const std::vector<RunStep>& lines, std::size_t rank) {
  if (lines.empty())
    return invalid_argument("rank ", rank, ": expected steps with phases, found none");
  Steps steps;
  for (const RunStep& line : lines) {
    for (std::size_t p = 0; p < line.seconds.size(); ++p) {
      if (!(line.seconds[p] >= 0 && line.seconds[p] <= kMostSeconds))
        return invalid_argument("rank ", rank, ": step ", line.step, ": ", kRunPhases[p],
                                ": expected seconds, finite and from 0 on, found ",
                                significant(line.seconds[p], 4));
    }
    steps[line.step] = line.seconds;
  }
  return steps;
}

double own_work(const Seconds& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < kReduction; ++p) sum += seconds[p];
  return sum;
}

// A rank that did nothing in a step was not measured in it.
std::vector<std::int64_t> common_steps(const std::vector<Steps>& ranks) {
  std::vector<std::int64_t> common;
  for (const auto& [step, seconds] : ranks.front()) {
    const auto has_worked = [s = step](const Steps& rank) {
      const auto found = rank.find(s);
      return found != rank.end() && own_work(found->second) > 0;
    };
    if (std::ranges::all_of(ranks, has_worked)) common.push_back(step);
  }
  return common;
}

// What each rank spent on the phases of one step, with the waiting taken out of the reduction.
std::vector<Seconds> without_waiting(const std::vector<Steps>& ranks, std::int64_t step) {
  std::vector<Seconds> out;
  double longest = 0;
  double least = kMostSeconds;
  for (const Steps& rank : ranks) {
    out.push_back(rank.at(step));
    longest = std::max(longest, own_work(out.back()));
    least = std::min(least, out.back()[kReduction]);
  }
  for (Seconds& seconds : out)
    seconds[kReduction] = std::max(least, seconds[kReduction] - (longest - own_work(seconds)));
  return out;
}

double traced_seconds(const std::vector<Steps>& ranks, std::int64_t step) {
  double longest = 0;
  for (const Steps& rank : ranks)
    longest = std::max(longest, own_work(rank.at(step)) + rank.at(step)[kReduction]);
  return longest;
}

std::vector<std::size_t> phases_with_time(const std::vector<Steps>& ranks) {
  std::vector<std::size_t> used;
  for (std::size_t p = 0; p < kRunPhases.size(); ++p) {
    const bool is_used = std::ranges::any_of(ranks, [p](const Steps& rank) {
      return std::ranges::any_of(rank, [p](const auto& step) { return step.second[p] > 0; });
    });
    if (is_used) used.push_back(p);
  }
  return used;
}

Result<OperationGraph> chain_of(const std::vector<std::size_t>& phases) {
  std::vector<std::vector<std::uint32_t>> depends_on(phases.size());
  for (std::uint32_t o = 1; o < phases.size(); ++o) depends_on[o].push_back(o - 1);
  std::vector<OperationGroup> groups;
  if (phases.back() == kReduction)
    groups.push_back(
        {{static_cast<std::uint32_t>(phases.size() - 1)}, OperationGroup::Reach::all_dp_ranks});
  return ordered(std::move(groups), std::move(depends_on));
}

OperationType type_of(std::size_t phase) {
  OperationType type;
  type.name = kRunPhases[phase];
  type.label = type.name;
  if (phase == kReduction) {
    type.centre = OperationType::Centre::median;
    type.traffic = OperationType::Traffic::data_parallel;
  }
  return type;
}

void add_steps(JobModel& model, const std::vector<Steps>& ranks,
               const std::vector<std::size_t>& phases) {
  for (const std::int64_t step : model.steps) {
    const std::vector<Seconds> own = without_waiting(ranks, step);
    for (const std::size_t phase : phases) {
      for (const Seconds& seconds : own) model.own_seconds.push_back(seconds[phase]);
    }
    model.traced_seconds.push_back(traced_seconds(ranks, step));
  }
}

void tell_gaps(JobModel& model, const RunPhases& run, const std::vector<Steps>& ranks) {
  model.gaps = run.gaps;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::size_t repeated = run.of_ranks[r].size() - ranks[r].size();
    const std::size_t alone = ranks[r].size() - model.steps.size();
    if (repeated > 0)
      model.gaps.push_back(concat("rank ", r, ": ", repeated,
                                  " steps were done again after a rollback; the last time counts"));
    if (alone > 0)
      model.gaps.push_back(
          concat("rank ", r, ": ", alone,
                 " steps are left out that some rank does not have, or has no work in"));
  }
  if (ranks.size() == 1)
    model.gaps.emplace_back("there is one rank: nothing to compare it with but its other steps");
}

}  // namespace

Result<JobModel> model_of(const RunPhases& run) {
  if (run.of_ranks.empty()) return invalid_argument("expected ranks with steps, found none");
  std::vector<Steps> ranks;
  for (std::size_t r = 0; r < run.of_ranks.size(); ++r) {
    auto steps = steps_of(run.of_ranks[r], r);
    if (!steps.ok()) return steps.status();
    ranks.push_back(*std::move(steps));
  }
  JobModel model;
  model.dp_ranks = ranks.size();
  model.stages = 1;
  model.steps = common_steps(ranks);
  if (model.steps.empty())
    return invalid_argument("expected steps in which all ", ranks.size(),
                            " ranks have worked, found none");
  const std::vector<std::size_t> phases = phases_with_time(ranks);
  if (phases.empty()) return invalid_argument("expected phases that take time, found none");
  auto graph = chain_of(phases);
  if (!graph.ok()) return graph.status();
  model.graph = *std::move(graph);
  for (std::size_t o = 0; o < phases.size(); ++o) {
    model.types.push_back(type_of(phases[o]));
    model.operations.push_back({static_cast<std::uint16_t>(o), 0});
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    model.ranks.push_back(static_cast<std::int32_t>(r));
  add_steps(model, ranks, phases);
  tell_gaps(model, run, ranks);
  return model;
}

}  // namespace cox::diagnosis
