#include "sdk/src/memory/memory_trial.h"

#include <algorithm>

namespace cox::detail {
namespace {

StageOption& option(MemoryProblem& problem, std::size_t stage, MemoryAction action) {
  return problem.stages[stage].options[static_cast<std::size_t>(action)];
}

StageOption option_of(const StageReading& reading) {
  StageOption option;
  option.allowed = true;
  option.kept_bytes = reading.kept_bytes;
  option.forward_high_bytes = reading.forward_high_bytes;
  option.backward_high_bytes = reading.backward_high_bytes;
  return option;
}

// What is no block takes the most that any pass saw there.
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

void note_kept(MemoryProblem& problem, const StepReading& reading, std::size_t block) {
  Stage& stage = problem.stages[block + 1];
  stage.forward_us = reading.stages[block + 1].forward_us;
  stage.backward_us = reading.stages[block + 1].backward_us;
  option(problem, block + 1, MemoryAction::keep) = option_of(reading.stages[block + 1]);
}

// Running a block again takes what running it took; offloading waits for its copies both ways.
void note_other(MemoryProblem& problem, const StepReading& reading, MemoryAction action,
                std::int64_t copy_bytes_per_ms) {
  for (std::size_t s = 1; s + 1 < problem.stages.size(); ++s) {
    StageOption& tried = option(problem, s, action);
    tried = option_of(reading.stages[s]);
    tried.allowed = tried.kept_bytes < option(problem, s, MemoryAction::keep).kept_bytes;
    std::int64_t added_us = problem.stages[s].forward_us;
    if (action == MemoryAction::offload) {
      tried.stored_bytes = reading.stages[s].copied_bytes;
      added_us = 2000 * tried.stored_bytes / std::max<std::int64_t>(1, copy_bytes_per_ms);
    }
    tried.added_us = std::max<std::int64_t>(1, added_us);
  }
}

MemoryProblem empty_problem(std::size_t blocks) {
  MemoryProblem problem;
  problem.stages.resize(blocks + 2);
  for (std::size_t b = 0; b < blocks; ++b) {
    problem.stages[b + 1].block = static_cast<std::int32_t>(b);
  }
  return problem;
}

}  // namespace

std::vector<std::vector<std::size_t>> slices(const StepReading& recomputed,
                                             std::int64_t budget_bytes) {
  const std::size_t blocks = recomputed.stages.size() - 2;
  const std::int64_t room = budget_bytes - peak_bytes(recomputed);
  std::vector<std::vector<std::size_t>> all(1);
  std::int64_t held = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    // While its backward runs, a recomputed block holds what keep would have held since forward.
    const StageReading& stage = recomputed.stages[b + 1];
    const std::int64_t interior = std::max(stage.forward_high_bytes, stage.backward_high_bytes);
    if (budget_bytes > 0 && !all.back().empty() && held + interior > room) {
      all.emplace_back();
      held = 0;
    }
    all.back().push_back(b);
    held += interior;
  }
  return all;
}

Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass) {
  MemoryProblem problem = empty_problem(blocks);
  const bool recomputes = contains(settings.actions, MemoryAction::recompute);
  const auto other = recomputes ? MemoryAction::recompute : MemoryAction::keep;
  // The first pass of a process also makes what stays for all later ones; it is not read.
  const auto first = pass(Actions(blocks, other));
  if (!first.ok()) return first.status();
  const auto least = pass(Actions(blocks, other));
  if (!least.ok()) return least.status();
  note_gaps(problem, *least);
  for (const auto& slice : slices(*least, recomputes ? settings.budget_bytes : 0)) {
    Actions actions(blocks, other);
    for (const std::size_t b : slice) actions[b] = MemoryAction::keep;
    const auto kept = pass(actions);
    if (!kept.ok()) return kept.status();
    note_gaps(problem, *kept);
    for (const std::size_t b : slice) note_kept(problem, *kept, b);
  }
  if (recomputes) note_other(problem, *least, MemoryAction::recompute, 0);
  for (const MemoryAction action : {MemoryAction::tile, MemoryAction::offload}) {
    if (!contains(settings.actions, action)) continue;
    // The first run of tiles is checked, which holds everything; recompute's was the first pass.
    if (action == MemoryAction::tile && !recomputes) {
      if (const auto checked = pass(Actions(blocks, action)); !checked.ok()) {
        return checked.status();
      }
    }
    const auto tried = pass(Actions(blocks, action));
    if (!tried.ok()) return tried.status();
    note_gaps(problem, *tried);
    note_other(problem, *tried, action, settings.copy_bytes_per_ms);
  }
  return problem;
}

}  // namespace cox::detail
