#include "sdk/src/memory/memory_trial.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_facts.h"
#include "sdk/src/memory/storage_levels.h"

namespace cox::detail {
namespace {

StageOption& option(MemoryProblem& problem, std::size_t stage, MemoryAction action) {
  return problem.stages[stage].options[static_cast<std::size_t>(action)];
}

StageOption option_of(const StageReading& reading) {
  return {true, reading.kept_bytes, reading.forward_high_bytes, reading.backward_high_bytes};
}

// The stages before and after the blocks use the highest values of any pass.
void note_gaps(MemoryProblem& problem, const StepReading& reading) {
  for (const std::size_t stage : {std::size_t{0}, problem.stages.size() - 1}) {
    const StageOption seen = option_of(reading.stages[stage]);
    StageOption& kept = option(problem, stage, MemoryAction::keep);
    kept.allowed = true;
    kept.kept_bytes = std::max(kept.kept_bytes, seen.kept_bytes);
    kept.forward_high_bytes = std::max(kept.forward_high_bytes, seen.forward_high_bytes);
    kept.backward_high_bytes = std::max(kept.backward_high_bytes, seen.backward_high_bytes);
    problem.stages[stage].forward_us = reading.stages[stage].forward_us;
    problem.stages[stage].backward_us = reading.stages[stage].backward_us;
  }
  problem.base_bytes = std::max(problem.base_bytes, reading.start_bytes);
}

void note_kept(MemoryProblem& problem, const StepReading& reading, std::size_t s) {
  Stage& stage = problem.stages[s];
  stage.forward_us = reading.stages[s].forward_us;
  stage.backward_us = reading.stages[s].backward_us;
  option(problem, s, MemoryAction::keep) = option_of(reading.stages[s]);
}

// Stores a stage's cost under an action. `added_us` is the time in addition to keep's.
void note_tried(MemoryProblem& problem, const StepReading& reading, std::size_t s,
                MemoryAction action, std::int64_t added_us) {
  StageOption& tried = option(problem, s, action);
  tried = option_of(reading.stages[s]);
  tried.allowed = tried.kept_bytes < option(problem, s, MemoryAction::keep).kept_bytes;
  tried.added_us = std::max<std::int64_t>(1, added_us);
}

MemoryProblem empty_problem(const std::vector<std::size_t>& order) {
  MemoryProblem problem;
  problem.stages.resize(order.size() + 2);
  for (std::size_t s = 0; s < order.size(); ++s) {
    problem.stages[s + 1].block = static_cast<std::int32_t>(order[s]);
  }
  return problem;
}

// Returns the stages to keep in each pass, so that the passes keep every block once. Uses as few
// passes as `budget_bytes` allows, judging by each block's memory while recomputed. A slice has at
// least one stage.
std::vector<std::vector<std::size_t>> slices(const StepReading& recomputed,
                                             std::int64_t budget_bytes) {
  const std::int64_t room = budget_bytes - recomputed.peak_bytes;
  std::vector<std::vector<std::size_t>> all(1);
  std::int64_t held = 0;
  for (std::size_t s = 1; s + 1 < recomputed.stages.size(); ++s) {
    // While its backward runs, a recomputed block holds the memory that keep holds since forward.
    const StageReading& stage = recomputed.stages[s];
    const std::int64_t interior = std::max(stage.forward_high_bytes, stage.backward_high_bytes);
    if (budget_bytes > 0 && !all.back().empty() && held + interior > room) {
      all.emplace_back();
      held = 0;
    }
    all.back().push_back(s);
    held += interior;
  }
  return all;
}

// Runs the passes of measure_problem(): first with all blocks recomputed, which takes the least
// memory, then with slices kept within the budget, then with the other actions.
class ProblemTrial {
 public:
  ProblemTrial(std::size_t blocks, const TrialSettings& settings, const TrialPass& pass)
      : blocks_(blocks),
        settings_(settings),
        pass_(pass),
        recomputes_(contains(settings.actions, MemoryAction::recompute)),
        lightest_(recomputes_ ? MemoryAction::recompute : MemoryAction::keep) {}

  Result<MemoryProblem> run() {
    Status tried = try_least();
    if (tried.ok()) tried = try_kept();
    const bool has_levels = recomputes_ && settings_.levels != nullptr;
    if (tried.ok() && has_levels) tried = try_levels();
    if (tried.ok()) tried = try_others();
    const bool may_take_more =
        settings_.levels != nullptr || settings_.other_peak != nullptr || least_.has_repeats;
    if (tried.ok() && may_take_more) tried = try_plans();
    return tried.ok() ? Result<MemoryProblem>(std::move(problem_)) : Result<MemoryProblem>(tried);
  }

 private:
  Result<StepReading> run_pass(const Actions& actions) {
    auto reading = pass_(actions);
    if (reading.ok() && !least_.order.empty() && reading->order != least_.order)
      return no_chain("found a different order of blocks in a second run of the same step");
    return reading;
  }

  // Ignores the first pass of a process, which allocates memory that stays for all later ones.
  Status try_least() {
    const auto first = pass_(Actions(blocks_, lightest_));
    if (!first.ok()) return first.status();
    least_.order = first->order;
    auto least = run_pass(all(lightest_));
    if (!least.ok()) return least.status();
    least_ = std::move(*least);
    problem_ = empty_problem(least_.order);
    note_gaps(problem_, least_);
    return ok_status();
  }

  Status try_kept() {
    for (const auto& slice : slices_within_budget()) {
      Actions actions = all(lightest_);
      for (const std::size_t s : slice) actions[least_.order[s - 1]] = MemoryAction::keep;
      const auto kept = run_pass(actions);
      if (!kept.ok()) return kept.status();
      note_gaps(problem_, *kept);
      for (const std::size_t s : slice) note_kept(problem_, *kept, s);
    }
    for (std::size_t s = 1; recomputes_ && s + 1 < problem_.stages.size(); ++s)
      note_tried(problem_, least_, s, MemoryAction::recompute,
                 recompute_us(s, MemoryAction::recompute));
    return ok_status();
  }

  Status try_levels() {
    for (unsigned n = 1; n <= kRecomputeLevels; ++n) {
      for (const auto& slice : slices_within_budget()) {
        if (Status tried = try_level(recompute_level(n), n, slice); !tried.ok()) return tried;
      }
    }
    return ok_status();
  }

  Status try_level(MemoryAction action, unsigned n, const std::vector<std::size_t>& slice) {
    Actions actions = all(lightest_);
    bool has_any = false;
    for (const std::size_t s : slice) {
      if (settings_.levels->count(least_.order[s - 1]) < n) continue;
      actions[least_.order[s - 1]] = action;
      has_any = true;
    }
    if (!has_any) return ok_status();
    const auto tried = run_pass(actions);
    if (!tried.ok()) return tried.status();
    note_gaps(problem_, *tried);
    for (const std::size_t s : slice) {
      if (actions[least_.order[s - 1]] == action)
        note_tried(problem_, *tried, s, action, recompute_us(s, action));
    }
    return ok_status();
  }

  Status try_others() {
    for (const MemoryAction action : {MemoryAction::tile, MemoryAction::offload}) {
      if (!contains(settings_.actions, action)) continue;
      if (action == MemoryAction::tile && settings_.has_tiles && !settings_.has_tiles()) continue;
      const auto tried = run_pass(all(action));
      if (!tried.ok()) return tried.status();
      note_gaps(problem_, *tried);
      for (std::size_t s = 1; s + 1 < problem_.stages.size(); ++s) note_other(*tried, s, action);
    }
    return ok_status();
  }

  // Stages need not add up: memory held by several blocks (a skip connection) stays if only some
  // drop it, and blocks that come again hold theirs in turns. Other steps of the loop may also take
  // more than the measured one. So some plans are run as a whole, in all steps. The largest excess
  // over the sum of the stages is added to every plan.
  Status try_plans() {
    const auto solved = planner::solve_front(problem_);
    if (!solved.ok()) return solved.status();
    std::vector<const MemoryPoint*> affordable;
    for (const MemoryPoint& point : solved->front) {
      if (settings_.budget_bytes <= 0 || point.peak_bytes <= settings_.budget_bytes)
        affordable.push_back(&point);
    }
    // If no plan fits, tries the smallest one, so that the error can name a sufficient budget.
    if (affordable.empty() && !solved->front.empty())
      affordable.push_back(&*std::ranges::min_element(solved->front, {}, &MemoryPoint::peak_bytes));
    std::int64_t most = 0;
    for (std::size_t i = 0; i < std::min(kPlansTried, affordable.size()); ++i) {
      const std::size_t last = affordable.size() - 1;
      const std::size_t at = affordable.size() <= kPlansTried ? i : i * last / (kPlansTried - 1);
      const auto peak = peak_under(planner::per_block(problem_, blocks_, affordable[at]->actions));
      if (!peak.ok()) return peak.status();
      most = std::max(most, *peak - affordable[at]->peak_bytes);
    }
    option(problem_, 0, MemoryAction::keep).kept_bytes += most;
    return ok_status();
  }

  Result<std::int64_t> peak_under(const Actions& actions) {
    const auto reading = run_pass(actions);
    if (!reading.ok()) return reading.status();
    if (!settings_.other_peak) return reading->peak_bytes;
    const auto other = settings_.other_peak(actions);
    return other.ok() ? std::max(*other, reading->peak_bytes) : other;
  }

  // A block without a stage is kept under every plan.
  Actions all(MemoryAction action) const {
    Actions actions(blocks_, MemoryAction::keep);
    for (const std::size_t block : least_.order) actions[block] = action;
    return actions;
  }

  // A tile runs again as a whole block does; offloading waits for copies in both directions.
  void note_other(const StepReading& tried, std::size_t s, MemoryAction action) {
    const bool is_offload = action == MemoryAction::offload;
    const std::int64_t stored_bytes = is_offload ? tried.stages[s].copied_bytes : 0;
    const std::int64_t copy_us =
        2000 * stored_bytes / std::max<std::int64_t>(1, settings_.copy_bytes_per_ms);
    note_tried(problem_, tried, s, action, is_offload ? copy_us : problem_.stages[s].forward_us);
    option(problem_, s, action).stored_bytes = stored_bytes;
  }

  // Recomputing a block takes its forward time, unless its operators were measured.
  std::int64_t recompute_us(std::size_t s, MemoryAction action) const {
    const std::int64_t known =
        settings_.levels == nullptr ? 0 : settings_.levels->added_us(least_.order[s - 1], action);
    return known > 0 ? known : problem_.stages[s].forward_us;
  }

  std::vector<std::vector<std::size_t>> slices_within_budget() const {
    return slices(least_, recomputes_ ? settings_.budget_bytes : 0);
  }

  static constexpr std::size_t kPlansTried = 8;

  const std::size_t blocks_;
  const TrialSettings& settings_;
  const TrialPass& pass_;
  const bool recomputes_;
  const MemoryAction lightest_;
  StepReading least_;
  MemoryProblem problem_;
};

}  // namespace

Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass) {
  return ProblemTrial(blocks, settings, pass).run();
}

}  // namespace cox::detail
