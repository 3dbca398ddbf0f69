// MemoryActuator carries out what the plan says of activation memory on this rank: it sets the
// memory action of every block, owns the tier of offloaded tensors, reports blocks that cannot take
// their action, and predicts the peak. MemoryCalibration owns it, and finds the plan of the first
// step. Training thread only.
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
  // All references must outlive it.
  MemoryActuator(const MemoryConfig& config, RankId rank, BlockWatch& blocks, Log log);

  // Returns whether the settings ask for a plan.
  bool is_wanted() const { return is_wanted_; }
  // Returns the most bytes that the settings let this rank use of `limit_bytes`; 0 = unknown.
  std::int64_t budget_bytes(std::int64_t limit_bytes) const;
  // Opens the tier for the blocks of a model on `device`, with at most `tier_bytes`; 0 = no cap.
  // Warns where that fails. REQUIRES: blocks are attached.
  void open_tier(c10::Device device, std::int64_t tier_bytes);
  // Null where there is no tier.
  Offloader* offloader() { return offloader_.get(); }
  // Plans are for this rank as it was measured. The next apply() sets the actions anew.
  void foresee(planner::RankProblem measured);
  // The model that was steered is no longer there.
  void forget();

  // Does something only when the plan is another one.
  void apply(const Plan& plan, RoundId round) override;
  void begin_step() override { spent_before_ = spent(); }
  void restart_step() override { spent_before_ = spent(); }
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Tells the time that this rank spent on making dropped activations again and on waiting for
  // offloaded ones.
  void sign(RankSignal& signal) const override;
  // Returns a block that cannot take the action asked of it, as all that are to be offloaded once
  // the tier has failed; with every report until the plan no longer asks for it.
  Fragment next_fragment() override;

  // A step begins whose activations take `growth` times what was measured; infinity: more than
  // there is room for. Where the plan would exceed the budget then, the blocks get the fastest
  // measured actions that do not, or else those that hold least, until the next apply() or until
  // one of another plan. Returns whether they did.
  enum class RoomUntil { next_step, next_plan };
  bool make_room(double growth, RoomUntil until = RoomUntil::next_step);
  // Sets the actions that were last asked for, after runs that changed them.
  void steer_anew() { steer(std::vector<MemoryAction>(asked_)); }
  // Offloads nothing from now on if the tier lost tensors of the open step. Returns whether it did.
  bool leave_lost_tier();

 private:
  Seconds spent() const;
  // Sets the actions for all visits from now on, one per block, and returns them as they were set:
  // blocks that a failed tier cannot take hold as little as they can without it.
  std::vector<MemoryAction> steer(const std::vector<MemoryAction>& actions);
  bool has_failed_tier() const;
  // REQUIRES: asked_ has the block.
  Fragment failure_of(std::size_t block, std::string_view reason) const;
  std::int64_t predicted_peak(const std::vector<MemoryAction>& actions) const;
  // Returns the peak of a step of that many samples, 0 where it is not known.
  std::int64_t predicted_peak_with(std::uint64_t samples) const;
  // Says once of each block that it is kept whatever its action.
  void tell_pinned();

  const MemoryConfig& config_;
  const RankId rank_;
  BlockWatch& blocks_;
  Log log_;
  const bool is_wanted_;
  std::unique_ptr<Offloader> offloader_;
  planner::RankProblem measured_;     // without stages where nothing was
  std::optional<MemoryFront> front_;  // of that problem, once a step has outgrown its plan
  std::vector<MemoryAction> asked_;   // of the blocks
  bool is_without_tier_ = false;      // steered so, because the tier failed
  Seconds spent_before_{0};           // by spent(), when the step began
  Seconds spent_in_step_{0};
  std::vector<BlockId> told_pinned_;
  std::optional<PlanId> followed_;
  // The peak of a step as it was measured, under the plan followed; 0 = not known.
  std::int64_t predicted_peak_bytes_ = 0;
};

}  // namespace cox::detail
