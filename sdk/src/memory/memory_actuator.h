// MemoryActuator carries out what the plan says of activation memory on this rank: it sets the
// memory action of every block, reports blocks that cannot take theirs, and predicts the peak.
// Before the first step it calibrates: it tries on a sample batch what every block takes under
// every action (memory_trial.h), and the ranks start from the plan that follows. Training thread
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/plan.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/memory/offload.h"
#include "sdk/src/memory/storage_levels.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/precision/trial_pass.h"

namespace cox::detail {

class TrialStep;

// The memory that this rank may use.
struct MemoryShare {
  std::int64_t limit_bytes = 0;  // 0 = unknown
  std::int64_t tier_bytes = 0;   // of the tier; 0 = no cap
};

class MemoryActuator final : public Actuator, public Measuring, public Steering, public Reporting {
 public:
  // All references must outlive it. `run_directory`: where rank 0 keeps the profile of the job for
  // `cox plan`; empty = nowhere.
  MemoryActuator(const MemoryConfig& config, std::string run_directory, RankId rank,
                 BlockWatch& blocks, MemoryProbe& probe, Log log);

  const char* name() const override { return "memory"; }
  Status prepare() override;  // installs the counting allocator where memory is planned
  void attach(torch::nn::Module&) override { forget(); }
  void release() override { forget(); }
  bool is_wanted() const override { return is_wanted_; }
  std::string without() const override { return "activations stay as the program keeps them"; }
  // Returns invalid_argument for a rule that fits no block. Called once, when the blocks are known.
  Status check(LoopKind loop) override;
  void contribute(JobFacts& job) const override { job.capabilities.actions |= actions(); }
  bool wants_calibration() const override { return is_wanted_ && blocks_.size() > 0; }
  void calibrate(const SampleStep& sample, CalibrationHost& host) override;
  // Does something only when the plan is another one.
  void apply(const Plan& plan, RoundId round) override;
  void begin_step() override { spent_before_ = spent(); }
  void restart_step() override { spent_before_ = spent(); }
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Tells the time that this rank spent on making dropped activations again and on waiting for
  // offloaded ones.
  void sign(RankSignal& signal) const override;
  // Returns a block that cannot take the action asked of it; with every report until the plan no
  // longer asks for it.
  Fragment next_fragment() override;

  // A step begins whose activations take `growth` times what was measured; infinity: more than
  // there is room for. Where the plan would exceed the budget then, the blocks get the fastest
  // measured actions that do not, or else those that hold least, until the next apply() or until
  // one of another plan. Returns whether they did.
  enum class RoomUntil { next_step, next_plan };
  bool make_room(double growth, RoomUntil until = RoomUntil::next_step);

  // The reducers that can say how a step will treat its gradients.
  GradientHolders& gradient_holders() { return holders_; }

  // ---- Parts of calibrate() and apply(), for tests and benchmarks that steer without a session.
  // Opens the tier. REQUIRES: blocks are attached.
  void open(const MemoryShare& share);
  // Runs the step several times. `resident_later_bytes`: what the base does not hold yet, such as
  // the optimizer's state. `forget_run` drops what a run keeps for the rest of its step (quantised
  // weights), so that each run begins as a step does. `other_peak`: TrialSettings. Errors: the step
  // is no chain of blocks, or throws.
  Result<MemoryProblem> measure(
      TrialStep& step, std::int64_t resident_later_bytes,
      const std::function<void()>& forget_run = {},
      std::function<Result<std::int64_t>(const Actions&)> other_peak = {});
  // Sets the actions for all visits from now on, one per block.
  void steer(const Actions& actions);

 private:
  ActionSet actions() const;
  Seconds spent() const;
  void forget();
  TrialSettings trial_settings() const;
  void open_tier();
  Result<StepReading> traced(TrialStep& step);
  bool has_levels() const;
  // Runs the step some times with every block recomputed, for `levels_` to measure.
  void run_recomputed(TrialStep& step, const std::function<void()>& forget_run);
  void find_levels(const SampleStep& sample, CalibrationHost& host);
  // Returns the peak of a step of that many samples, 0 where it is not known.
  std::int64_t predicted_peak_with(std::uint64_t samples) const;
  // Runs the sample step under these actions; returns nothing where that fails.
  using Run = std::function<GradientPrints(const Actions&)>;
  bool explain_unequal(const SampleStep& sample, CalibrationHost& host);
  bool learn_spread(const Run& run);
  bool pin_unequal(const Run& run);
  // Returns the highest level that the loop's other steps reach under these actions.
  Result<std::int64_t> peak_of_others(const SampleStep& sample, const Actions& actions,
                                      CalibrationHost& host);
  Result<MemoryProblem> measure_sample(const SampleStep& sample, CalibrationHost& host);
  void start_from(const std::vector<planner::RankProblem>& problems, CalibrationHost& host);
  std::string explain_peak(const std::vector<planner::RankProblem>& problems,
                           const MemoryFacts& facts) const;
  void keep_profile(const std::vector<planner::RankProblem>& problems) const;
  void restrict_to_rules(MemoryProblem& problem) const;
  void predict(const Actions& actions);
  // Says once of each block that it is kept whatever its action.
  void tell_pinned();

  const MemoryConfig& config_;
  const std::string run_directory_;
  const RankId rank_;
  BlockWatch& blocks_;
  MemoryProbe& probe_;
  Log log_;
  bool is_wanted_;
  MemoryShare share_;
  GradientHolders holders_;
  std::unique_ptr<Offloader> offloader_;  // where there is a tier
  std::int64_t copy_bytes_per_ms_ = 0;
  std::optional<StorageLevels> levels_;  // of recompute, where blocks are followed
  GradientSpread spread_;                // of the sample step, where its runs differ
  Actions asked_;                        // of the blocks
  Seconds spent_before_{0};              // by spent(), when the step began
  Seconds spent_in_step_{0};
  std::vector<BlockId> told_pinned_;
  std::optional<PlanId> followed_;
  std::optional<MemoryProblem> problem_;  // what measure() found
  std::optional<MemoryFront> front_;      // of that problem, once a step has outgrown its plan
  std::uint64_t samples_ = 0;  // of the step that was measured; 0 = bytes do not depend on them
  std::int64_t predicted_peak_bytes_ = 0;  // of such a step under the plan followed; 0 = not known
};

}  // namespace cox::detail
