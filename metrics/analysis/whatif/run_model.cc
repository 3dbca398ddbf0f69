#include "metrics/analysis/whatif/run_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

namespace cox::diagnosis {
namespace {

// In the order of a step, with the names in run directories.
constexpr std::array<std::string_view, 7> kStepPhases = {
    "data", "forward", "backward", "compute", "optimizer", "other", "comm"};
constexpr std::size_t kReduction = kStepPhases.size() - 1;
constexpr double kMostStepSeconds = 1e9;

using Seconds = std::array<double, kStepPhases.size()>;
using Steps = std::vector<Seconds>;  // a rank's seconds in the model's steps

// RunPhases is the time of each rank in each phase of the common steps.
struct RunPhases {
  std::vector<std::int64_t> steps;
  std::vector<Steps> ranks;
  std::size_t older = 0;  // earlier steps, left out
};

double own_work(const Seconds& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < kReduction; ++p) sum += seconds[p];
  return sum;
}

// Returns whether a step was measured: a measured rank has some work.
bool has_worked(const Seconds& seconds) {
  return own_work(seconds) > 0 && std::isfinite(own_work(seconds) + seconds[kReduction]);
}

bool has_phases(const RankRecord& rank) {
  return std::ranges::any_of(kStepPhases, [&rank](std::string_view phase) {
    const Column* column = find(rank.phases, phase);
    return column != nullptr && column->any();
  });
}

// Returns a rank's seconds in `count` common steps from index `first` on. `rows` has the steps'
// rows in the record; empty if row and index are equal.
Steps steps_of(const RankRecord& rank, const std::vector<std::uint32_t>& rows, std::size_t first,
               std::size_t count) {
  Steps out(count);
  for (std::size_t p = 0; p < kStepPhases.size(); ++p) {
    const std::vector<double> values = values_of(rank.phases, kStepPhases[p], rank.size());
    for (std::size_t s = 0; s < count; ++s) {
      const double seconds = values[rows.empty() ? first + s : rows[first + s]];
      out[s][p] = is_absent(seconds) ? 0 : seconds;
    }
  }
  return out;
}

RunPhases common_phases(const RunRecord& run, std::size_t most_steps) {
  CommonSteps common = common_steps(run);
  common.rows.resize(run.ranks.size());
  const std::size_t most = std::max<std::size_t>(1, most_steps / run.ranks.size());
  const std::size_t count = std::min(common.numbers.size(), most);
  RunPhases out;
  out.older = common.numbers.size() - count;
  out.steps.assign(common.numbers.begin() + static_cast<std::ptrdiff_t>(out.older),
                   common.numbers.end());
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    out.ranks.push_back(steps_of(run.ranks[r], common.rows[r], out.older, count));
  return out;
}

// Returns whether seconds are impossible. Non-finite seconds mean an unmeasured step.
bool is_wrong(double seconds) {
  return std::isfinite(seconds) && (seconds < 0 || seconds > kMostStepSeconds);
}

Status check_seconds(const RunPhases& phases) {
  for (std::size_t r = 0; r < phases.ranks.size(); ++r) {
    for (std::size_t s = 0; s < phases.steps.size(); ++s) {
      for (std::size_t p = 0; p < kStepPhases.size(); ++p) {
        const double seconds = phases.ranks[r][s][p];
        if (is_wrong(seconds))
          return invalid_argument("rank ", r, ": step ", phases.steps[s], ": ", kStepPhases[p],
                                  ": expected seconds, finite and from 0 on, found ",
                                  significant(seconds, 4));
      }
    }
  }
  return ok_status();
}

// Keeps the steps in which all ranks have worked.
void leave_worked(RunPhases& phases) {
  std::size_t kept = 0;
  for (std::size_t s = 0; s < phases.steps.size(); ++s) {
    const bool have_all_worked =
        std::ranges::all_of(phases.ranks, [s](const Steps& rank) { return has_worked(rank[s]); });
    if (!have_all_worked) continue;
    for (Steps& rank : phases.ranks) rank[kept] = rank[s];
    phases.steps[kept++] = phases.steps[s];
  }
  for (Steps& rank : phases.ranks) rank.resize(kept);
  phases.steps.resize(kept);
}

std::size_t unknown_phases(const RankRecord& rank) {
  std::size_t count = 0;
  for (const auto& [name, column] : rank.phases) {
    if (std::ranges::find(kStepPhases, name) != kStepPhases.end()) continue;
    column.each(0, [&count](double seconds) { count += is_absent(seconds) ? 0 : 1; });
  }
  return count;
}

std::size_t times_clock_ran_back(const RankRecord& rank) {
  const std::vector<double> times = rank.timestamps.values();
  std::size_t count = 0;
  std::size_t row = 0;
  double newest_step = -1;
  double newest_time = 0;
  rank.steps.each(0, [&](double step) {
    const double time = times[row++];
    if (is_absent(time)) return;
    if (step > newest_step && time < newest_time) ++count;
    newest_step = step;
    newest_time = time;
  });
  return count;
}

std::size_t different_steps(const RankRecord& rank) {
  std::vector<double> steps = rank.steps.values();
  std::ranges::sort(steps);
  return static_cast<std::size_t>(std::unique(steps.begin(), steps.end()) - steps.begin());
}

// Returns each rank's seconds in the phases of a common step, with waiting removed from the
// reduction.
std::vector<Seconds> without_waiting(const std::vector<Steps>& ranks, std::size_t step) {
  std::vector<Seconds> out;
  double longest = 0;
  double least = kMostStepSeconds;
  for (const Steps& rank : ranks) {
    out.push_back(rank[step]);
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
    longest = std::max(longest, own_work(rank[step]) + rank[step][kReduction]);
  return longest;
}

std::vector<std::size_t> phases_with_time(const std::vector<Steps>& ranks) {
  std::vector<std::size_t> used;
  for (std::size_t p = 0; p < kStepPhases.size(); ++p) {
    const bool is_used = std::ranges::any_of(ranks, [p](const Steps& rank) {
      return std::ranges::any_of(rank, [p](const Seconds& seconds) { return seconds[p] > 0; });
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
  type.name = kStepPhases[phase];
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

void tell_gaps(JobModel& model, const RunRecord& run, std::size_t older) {
  for (const RankRecord& rank : run.ranks) {
    const auto tell = [&](std::size_t count, std::string_view what) {
      tell_gap(model.gaps, rank.rank, count, what);
    };
    const std::size_t different = different_steps(rank);
    tell(unknown_phases(rank), " times of unknown phases do not count");
    tell(times_clock_ran_back(rank), " times the clock ran backwards between steps");
    tell(older, " older steps are left out: the run is long");
    tell(rank.size() - different, " steps were done again after a rollback; the last time counts");
    tell(different - older - model.steps.size(),
         " steps are left out because some rank lacks them or has no work in them");
  }
  if (run.ranks.size() == 1)
    model.gaps.emplace_back("there is one rank: it is compared with its own other steps only");
}

// Builds the model of a run with these non-empty phases, without steps.
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

Result<JobModel> model_of(const RunRecord& run, std::size_t most_steps) {
  if (run.ranks.empty()) return invalid_argument("expected ranks with steps, found none");
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    if (!has_phases(run.ranks[r]))
      return invalid_argument("rank ", r, ": expected steps with phases, found none");
  }
  RunPhases phases = common_phases(run, most_steps);
  if (Status checked = check_seconds(phases); !checked.ok()) return checked;
  leave_worked(phases);
  if (phases.steps.empty())
    return invalid_argument("expected steps in which all ", run.ranks.size(),
                            " ranks have worked, found none");
  const std::vector<std::size_t> used = phases_with_time(phases.ranks);
  auto model = chain_model(used, run.ranks.size());
  if (!model.ok()) return model;
  model->steps = std::move(phases.steps);
  model->gaps = run.gaps;
  add_steps(*model, phases.ranks, used);
  tell_gaps(*model, run, phases.older);
  return model;
}

}  // namespace cox::diagnosis
