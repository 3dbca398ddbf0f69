// The part of SessionState that plans memory: the trial before the first step, and the start from
// the plan that follows from it.
#include <algorithm>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/planner/memory_facts.h"
#include "coxswain/error.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/precision/trial_step.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {

bool SessionState::wants_memory_trial() const {
  return steering_.is_wanted() && is_reducing_ && blocks_.size() > 0;
}

void SessionState::try_memory(const SampleStep& sample) {
  const std::int32_t neighbours = std::max(1, world_.all().ranks_on_node());
  MemoryShare share;
  share.limit_bytes = static_cast<std::int64_t>(memory_.reading().limit_bytes);
  share.tier_bytes = loaded_.config.memory.tier_bytes / neighbours;
  steering_.open(share);
  planner::RankProblem mine{{}, share.limit_bytes};
  if (sample.loss) {
    auto problem = measure_memory(sample);
    if (problem.ok()) {
      mine.problem = std::move(*problem);
    } else {
      log_.warning(problem.status().message());
    }
  }
  auto problems = gather_problems(world_.all(), mine);
  if (!problems.ok()) throw Error(problems.status());
  start_from(std::move(*problems));
  steering_.follow(plane_->plan(), rank());
}

// As a step of this job will treat its gradients.
Result<MemoryProblem> SessionState::measure_memory(const SampleStep& sample) {
  const GradientHolding held = gradient_holders_.held(sample.micro_batches);
  TrialStep step(sample.model, sample.loss, held.released);
  return steering_.measure(step, sample.resident_later_bytes + held.resident_bytes,
                           [this] { numbers_.forget(); });
}

void SessionState::start_from(std::vector<planner::RankProblem> problems) {
  if (rank() == kRoot) {
    keep_profile(problems);
    auto known = planner::memory_facts(std::move(problems));
    if (known.ok()) {
      measured_.memory = std::move(*known);
    } else {
      log_.warning(known.status().message());
    }
  }
  Status possible;
  const bool observes = loaded_.config.memory.mode == PolicyMode::observe;
  for (const Reason& reason : learn()) {
    if (reason.code == ReasonCode::memory_infeasible && !observes) {
      possible = invalid_argument(reason.text);
    }
  }
  agree(possible);
}

// For `cox plan`, beside the record of the run.
void SessionState::keep_profile(const std::vector<planner::RankProblem>& problems) const {
  if (loaded_.config.run.directory.empty()) return;
  const auto file = std::filesystem::path(loaded_.config.run.directory) / "memory_profile.json";
  const Status kept =
      io::replace_file(file, planner::to_json(planner::profile_of(problems, blocks_.names())));
  if (!kept.ok()) log_.warning(kept.message());
}

}  // namespace cox::detail
