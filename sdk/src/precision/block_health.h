// BlockHealth finds the block of this rank in which an overflow arose, and reports how close each
// block is to its format's limits. Followers of the blocks write visits into its ledger while a
// step is open (VisitHealth, numerics_watch.h). At the end of the step a rule (block_health.cc)
// names the block to blame, and BlockHealth fills the evidence. A session owns it. Training thread
// only; no communication. Per step and rank:
//
//   health.begin_step(scale);          forward, backward ...
//   ballot.amax = health.amax_scaled_fp16();
//   health.parameter_gradients(nonfinite, step);     before reduction and unscaling
//   merge_into(evidence, health.end_step(rank));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/units.h"
#include "sdk/src/precision/health_ledger.h"

namespace cox::detail {

struct HealthVerdict {
  // parameters: non-finite before the step.
  enum class Where { nothing, parameters, forward, backward, outside };
  Where where = Where::nothing;
  std::optional<BlockId> block;  // to blame; outside: the nearest, if any
  std::int64_t values = 0;       // non-finite values that arose there
  friend bool operator==(const HealthVerdict&, const HealthVerdict&) = default;
};

// StepTrouble is the reducer's knowledge of a step, beside the calls of blocks.
struct StepTrouble {
  std::vector<std::int64_t> in_parameters;  // non-finite gradient values per block
  std::int64_t outside = 0;                 // in parameters without a block
  std::vector<std::int64_t> parameters;     // non-finite values of the parameters, per block
  bool has_bad_loss = false;

  // Starts a step of a job with `blocks` blocks. Allocates nothing after the first step.
  void clear(std::size_t blocks) {
    in_parameters.assign(blocks, 0);
    parameters.assign(blocks, 0);
    outside = 0;
    has_bad_loss = false;
  }
};

// Largest is a magnitude, part of which may be on a device.
struct Largest {
  float here = 0;
  at::Tensor on_device;  // one fp64 number; undefined: nothing there
};

// GradientLook checks whether the gradients of a backward pass, and the parameters at the time, are
// finite. Figures on a device arrive without a wait.
struct GradientLook {
  StepId step;
  FiniteLook gradients;
  std::optional<FiniteLook> parameters;  // none: all gradients are finite
  // Returns whether all figures have arrived. Never waits.
  bool finish() { return gradients.finish() && (!parameters || parameters->finish()); }
};

// BlockHealth counts underflow for blocks that compute in fp16, in the scaled gradients at the
// blocks' boundaries. All non-zero values below 2^-14, the least normal fp16 number, count. Zeros
// of an outgoing gradient count if the gradient has such values, or is all 0 although an incoming
// one is not; only zeros beyond the incoming gradients' share of zeros count. Zeros of other
// gradients come from ReLU and masks.
//
// Cost: 1.4 us a call. Each tensor between blocks is scanned in forward, and its gradient in
// backward. A scan takes 2 us for 256 KiB in a cache, and three times as long beside fp16. A device
// needs some ten small kernels for each scan and one read a step.
class BlockHealth {
 public:
  // Watches `blocks` blocks until release(); a follower writes their visits into the ledger.
  // parameter_gradients() expects the gradients of `parameters`, in order. `owners`: the block of
  // each parameter, if any.
  std::shared_ptr<HealthLedger> watch(std::size_t blocks, std::span<const at::Tensor> parameters,
                                      std::vector<std::optional<BlockId>> owners);
  void release();
  bool is_watching() const { return ledger_ != nullptr; }

  // Begins a step whose losses are multiplied by `scale`, > 0.
  void begin_step(float scale);
  float scale() const { return scale_; }  // in the open step
  // Adds the number of non-finite values in each parameter's gradient, before reduction. Also
  // checks whether the parameters are finite, in one read of all. Called in a step that goes wrong,
  // before any update. Optional.
  void parameter_gradients(std::span<const std::int64_t> nonfinite, StepId step);
  // Marks the open step as wrong, with gradients not counted by parameter.
  void note_wrong(StepId step) { wrong_ = step; }
  // Checks whether the gradients of all parameters are finite. Called after a backward pass of
  // `step` and before any update; never waits for a device. The step goes wrong if a gradient is
  // known to be non-finite.
  void look_at_gradients(StepId step);
  // Returns whether the open step, or the last one, goes wrong by the figures known now.
  bool goes_wrong() const { return wrong_.has_value(); }
  // Records a loss of any micro-batch of the step.
  void loss(double value);
  // Returns the largest finite scaled gradient, at a boundary or of a parameter, of blocks that
  // computed in fp16 in the step; 0 if there is none. Reads the gradients of such blocks'
  // parameters once, near the speed of memory. REQUIRES: gradients are not divided yet.
  Largest amax_scaled_fp16();
  // Ends the step. Returns one entry for each block, valid until the next step; none if no step is
  // open. Never waits for a device unless the step went wrong. If figures are still on a device,
  // the entries and the verdict are those of the newest earlier step with complete figures.
  std::span<const BlockEvidence> end_step(RankId rank);

  const HealthVerdict& verdict() const { return verdict_; }  // the last ended step's
  // Returns the step that went wrong by the verdict; the verdict may be of an earlier step.
  StepId wrong_step() const { return late_step_ ? *late_step_ : wrong_.value_or(StepId()); }

 private:
  void add_parameters(const std::vector<bool>& is_in_fp16, Largest& to) const;
  std::vector<at::Tensor> trained_parameters() const;
  void add_gradients(std::span<const std::int64_t> nonfinite, StepTrouble& to) const;
  void add_parameters(std::span<const std::int64_t> nonfinite, StepTrouble& to) const;
  bool add_if_bad(const GradientLook& look, StepTrouble& to) const;
  void settle_looks();
  void judge_late(RankId rank);
  void note(std::span<const BlockCallRecord> calls, float scale, RankId rank);
  void note_late(RankId rank);
  void note(const BlockCallRecord& call, float scale, RankId rank);
  void blame(RankId rank);

  std::shared_ptr<HealthLedger> ledger_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::optional<BlockId>> owners_;  // by parameter
  float scale_ = 1;
  StepTrouble trouble_;
  std::optional<StepId> wrong_;  // the open step, if wrong
  HealthVerdict verdict_;
  std::vector<BlockEvidence> evidence_;

  // A step whose figures are on their way from a device.
  struct Late {
    HealthLedger::Page page;
    float scale = 1;
    std::vector<GradientLook> looks;
    bool is_complete();
  };
  std::deque<Late> late_;            // oldest first
  std::vector<GradientLook> looks_;  // the open step's, without an answer
  std::optional<StepId> late_step_;
};

}  // namespace cox::detail
