#include "metrics/analysis/whatif/run_model.h"

#include <algorithm>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr std::size_t kReduction = kRunPhases.size() - 1;
constexpr double kMostSeconds = 1e9;

using Seconds = std::array<double, kRunPhases.size()>;
using Steps = std::vector<RunStep>;

Status check_seconds(const Steps& steps, std::size_t rank) {
  if (steps.empty())
    return invalid_argument("rank ", rank, ": expected steps with phases, found none");
  for (const RunStep& step : steps) {
    for (std::size_t p = 0; p < step.seconds.size(); ++p) {
      if (!(step.seconds[p] >= 0 && step.seconds[p] <= kMostSeconds))
        return invalid_argument("rank ", rank, ": step ", step.step, ": ", kRunPhases[p],
                                ": expected seconds, finite and from 0 on, found ",
                                significant(step.seconds[p], 4));
    }
  }
  return ok_status();
}

// Puts them in the order of their numbers, each as it was last. Returns how many went.
std::size_t arrange(Steps& steps) {
  if (!std::ranges::is_sorted(steps, {}, &RunStep::step))
    std::ranges::stable_sort(steps, {}, &RunStep::step);
  const std::size_t before = steps.size();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < before; ++i) {
    const bool is_last = i + 1 == before || steps[i + 1].step != steps[i].step;
    if (is_last) steps[kept++] = steps[i];
  }
  steps.resize(kept);
  return before - kept;
}

double own_work(const Seconds& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < kReduction; ++p) sum += seconds[p];
  return sum;
}

// The steps in which all ranks have worked. A rank that did nothing in a step was not measured in
// it.
std::vector<std::int64_t> common_steps(const std::vector<Steps>& ranks) {
  std::vector<std::int64_t> common;
  for (const RunStep& step : ranks.front()) common.push_back(step.step);
  for (const Steps& rank : ranks) {
    std::erase_if(common, [&rank](std::int64_t number) {
      const auto found = std::ranges::lower_bound(rank, number, {}, &RunStep::step);
      return found == rank.end() || found->step != number || own_work(found->seconds) <= 0;
    });
  }
  return common;
}

// Leaves the steps of these numbers. Returns how many went.
std::size_t leave_only(const std::vector<std::int64_t>& numbers, Steps& steps) {
  return std::erase_if(steps, [&numbers](const RunStep& step) {
    return !std::ranges::binary_search(numbers, step.step);
  });
}

// What each rank spent on the phases of a step that all have, with the waiting taken out of the
// reduction.
std::vector<Seconds> without_waiting(const std::vector<Steps>& ranks, std::size_t step) {
  std::vector<Seconds> out;
  double longest = 0;
  double least = kMostSeconds;
  for (const Steps& rank : ranks) {
    out.push_back(rank[step].seconds);
    longest = std::max(longest, own_work(out.back()));
    least = std::min(least, out.back()[kReduction]);
  }
  for (Seconds& seconds : out)
    seconds[kReduction] = std::max(least, seconds[kReduction] - (longest - own_work(seconds)));
  return out;
}

double traced_seconds(const std::vector<Steps>& ranks, std::size_t step) {
  double longest = 0;
  for (const Steps& rank : ranks)
    longest = std::max(longest, own_work(rank[step].seconds) + rank[step].seconds[kReduction]);
  return longest;
}

std::vector<std::size_t> phases_with_time(const std::vector<Steps>& ranks) {
  std::vector<std::size_t> used;
  for (std::size_t p = 0; p < kRunPhases.size(); ++p) {
    const bool is_used = std::ranges::any_of(ranks, [p](const Steps& rank) {
      return std::ranges::any_of(rank, [p](const RunStep& step) { return step.seconds[p] > 0; });
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
  model.own_seconds.reserve(model.steps.size() * phases.size() * ranks.size());
  for (std::size_t s = 0; s < model.steps.size(); ++s) {
    const std::vector<Seconds> own = without_waiting(ranks, s);
    for (const std::size_t phase : phases) {
      for (const Seconds& seconds : own) model.own_seconds.push_back(seconds[phase]);
    }
    model.traced_seconds.push_back(traced_seconds(ranks, s));
  }
}

// How many steps of a rank do not count.
struct LeftOut {
  std::size_t repeated = 0;
  std::size_t alone = 0;
};

void tell_gaps(JobModel& model, const std::vector<LeftOut>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].repeated > 0)
      model.gaps.push_back(concat("rank ", r, ": ", ranks[r].repeated,
                                  " steps were done again after a rollback; the last time counts"));
    if (ranks[r].alone > 0)
      model.gaps.push_back(
          concat("rank ", r, ": ", ranks[r].alone,
                 " steps are left out that some rank does not have, or has no work in"));
  }
  if (ranks.size() == 1)
    model.gaps.emplace_back("there is one rank: nothing to compare it with but its other steps");
}

// Returns the model of a run whose phases with time these are, without its steps.
Result<JobModel> chain_model(const std::vector<std::size_t>& phases, std::size_t ranks) {
  JobModel model;
  model.dp_ranks = ranks;
  model.stages = 1;
  auto graph = chain_of(phases);
  if (!graph.ok()) return graph.status();
  model.graph = *std::move(graph);
  for (std::size_t o = 0; o < phases.size(); ++o) {
    model.types.push_back(type_of(phases[o]));
    model.operations.push_back({static_cast<std::uint16_t>(o), 0});
  }
  for (std::size_t r = 0; r < ranks; ++r) model.ranks.push_back(static_cast<std::int32_t>(r));
  return model;
}

}  // namespace

Result<JobModel> model_of(RunPhases run) {
  std::vector<Steps>& ranks = run.of_ranks;
  if (ranks.empty()) return invalid_argument("expected ranks with steps, found none");
  std::vector<LeftOut> left_out(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (Status checked = check_seconds(ranks[r], r); !checked.ok()) return checked;
    left_out[r].repeated = arrange(ranks[r]);
  }
  std::vector<std::int64_t> common = common_steps(ranks);
  if (common.empty())
    return invalid_argument("expected steps in which all ", ranks.size(),
                            " ranks have worked, found none");
  for (std::size_t r = 0; r < ranks.size(); ++r) left_out[r].alone = leave_only(common, ranks[r]);
  const std::vector<std::size_t> phases = phases_with_time(ranks);
  auto model = chain_model(phases, ranks.size());
  if (!model.ok()) return model;
  model->steps = std::move(common);
  model->gaps = std::move(run.gaps);
  add_steps(*model, ranks, phases);
  tell_gaps(*model, left_out);
  return model;
}

}  // namespace cox::diagnosis
