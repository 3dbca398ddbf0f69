// MemoryActuator applies the plan's memory actions on this rank. The actuator sets every block's
// action, owns the tier of offloaded tensors, reports blocks that cannot use their action, and
// predicts the peak. MemoryCalibration owns the actuator and finds the first step's plan. Training
// thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/settings/memory.h"
#include "coordinator/planner/memory_facts.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/offload.h"

namespace cox::detail {

class MemoryActuator final : public Steering, public Reporting {
 public:
  // All references outlive the actuator.
  MemoryActuator(const MemoryConfig& config, RankId rank, BlockWatch& blocks, Log log);

  // Returns whether the settings request a plan.
  bool is_wanted() const { return is_wanted_; }
  // Returns the most bytes that the settings allow this rank of `limit_bytes`; 0 = unknown.
  std::int64_t budget_bytes(std::int64_t limit_bytes) const;
  // Opens the tier for the blocks of a model on `device`, with at most `tier_bytes`; 0 = no cap.
  // Logs a warning on failure. REQUIRES: blocks are attached.
  void open_tier(c10::Device device, std::int64_t tier_bytes);
  // Returns null without a tier.
  Offloader* offloader() { return offloader_.get(); }
  // Uses this rank's measurements to predict peaks. The next apply() sets the actions anew.
  void foresee(planner::RankProblem measured);
  // Forgets the steered model, which is gone.
  void forget();

  // Does nothing for an unchanged plan.
  void apply(const Plan& plan, RoundId round) override;
  void begin_step() override { spent_before_ = spent(); }
  void restart_step() override { spent_before_ = spent(); }
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Reports this rank's time for remaking dropped activations and for waiting for offloaded ones.
  void sign(RankSignal& signal) const override;
  // Returns a block that cannot use its action, such as every block to be offloaded after the tier
  // has failed. Repeats the block in every report until the plan no longer requests the action.
  Fragment next_fragment() override;

  // Prepares a step whose activations take `growth` times the measured bytes; infinity means more
  // than there is room for. If the plan would exceed the budget, the blocks get the fastest
  // measured actions within the budget, or else the actions that hold the least. `RoomUntil` says
  // how long these actions last: until the next apply(), or until the apply() of another plan.
  // Returns whether the actions changed.
  enum class RoomUntil { next_step, next_plan };
  bool make_room(double growth, RoomUntil until = RoomUntil::next_step);
  // Sets the last requested actions again, after runs that changed them.
  void steer_anew() { steer(std::vector<MemoryAction>(asked_)); }
  // Stops offloading if the tier lost tensors of the open step. Returns whether it did.
  bool leave_lost_tier();

 private:
  Seconds spent() const;
  // Sets each block's action for all visits from now on. Returns the actions as set: blocks
  // affected by a failed tier hold as little as possible without the tier.
  std::vector<MemoryAction> steer(const std::vector<MemoryAction>& actions);
  bool has_failed_tier() const;
  // REQUIRES: asked_ has the block.
  Fragment failure_of(std::size_t block, std::string_view reason) const;
  std::int64_t predicted_peak(const std::vector<MemoryAction>& actions) const;
  // Returns the peak of a step of `samples` samples; 0 if unknown.
  std::int64_t predicted_peak_with(std::uint64_t samples) const;
  // Logs once for each block that it is kept whatever its action.
  void tell_pinned();

  const MemoryConfig& config_;
  const RankId rank_;
  BlockWatch& blocks_;
  Log log_;
  const bool is_wanted_;
  std::unique_ptr<Offloader> offloader_;
  planner::RankProblem measured_;     // without stages if nothing was measured
  std::optional<MemoryFront> front_;  // front of `measured_`, once a step has outgrown its plan
  std::vector<MemoryAction> asked_;   // requested, by block
  bool is_without_tier_ = false;      // actions avoid the tier, because it failed
  Seconds spent_before_{0};           // spent() at the beginning of the step
  Seconds spent_in_step_{0};
  std::vector<BlockId> told_pinned_;
  std::optional<PlanId> followed_;
  // The measured peak of a step under the current plan; 0 = unknown.
  std::int64_t predicted_peak_bytes_ = 0;
};

}  // namespace cox::detail
