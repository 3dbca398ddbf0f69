// MemorySteering: the session's hand on activation memory of this rank. Before the first step it
// tries on a sample batch what every block takes under every memory action; from then on it sets
// the actions that the plan in force has for this rank, and reads the counted bytes. Owned by
// SessionState; training thread only; nothing here communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/plan.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/memory/offload.h"
#include "sdk/src/session/block_watch.h"

namespace cox::detail {

class TrialStep;

struct MemoryShare {
  std::int64_t limit_bytes = 0;  // what this rank may use; 0 = unknown
  std::int64_t tier_bytes = 0;   // of the tier; 0 = no cap
};

class MemorySteering {
 public:
  MemorySteering(const MemoryConfig& config, BlockWatch& blocks, Log log);

  // Whether memory is planned at all: a budget, a rule or the mode asks for it.
  bool is_wanted() const { return is_wanted_; }
  // What can be carried out here: keep and, where memory is planned, what the settings allow.
  ActionSet actions() const;

  // Opens the tier, once `share` is known. Blocks must be attached.
  void open(const MemoryShare& share);

  // Runs the step several times (memory_trial.h). `resident_later_bytes`: what the base does not
  // hold yet, such as the optimizer's state. `forget` drops what a run keeps for the rest of its
  // step (quantised weights), so that each run begins as a step does. Errors: the step is no chain
  // of blocks, or throws.
  Result<MemoryProblem> measure(TrialStep& step, std::int64_t resident_later_bytes,
                                const std::function<void()>& forget = {});

  // The model that was measured is no longer steered.
  void forget();

  // At the beginning of every step; does something only when the plan is another one.
  void follow(const Plan& plan, RankId rank);

  // Of a step of this rank under the plan followed; 0 where nothing was measured.
  std::int64_t predicted_peak_bytes() const { return predicted_peak_bytes_; }

 private:
  TrialSettings trial_settings() const;
  void open_tier();
  void restrict_to_rules(MemoryProblem& problem) const;
  void predict(const Actions& actions);

  const MemoryConfig& config_;
  BlockWatch& blocks_;
  Log log_;
  bool is_wanted_;
  MemoryShare share_;
  std::unique_ptr<Offloader> offloader_;  // where there is a tier
  std::int64_t copy_bytes_per_ms_ = 0;
  std::optional<PlanId> followed_;
  std::optional<MemoryProblem> problem_;  // what measure() found
  std::int64_t predicted_peak_bytes_ = 0;
};

}  // namespace cox::detail
