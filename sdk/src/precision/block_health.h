// BlockHealth finds the block of this rank that an overflow arose in, and tells how close to its
// format's limits each block works. Whoever follows the blocks writes their visits into its ledger
// while a step is open (VisitHealth, numerics_watch.h); when the step ends, a rule
// (block_health.cc) names the block to blame and BlockHealth fills the evidence. A session owns it;
// the thread that trains uses it. It does not communicate. Per step and rank:
//
//   health.begin_step(scale);          forward, backward ...
//   ballot.amax = health.amax_scaled_fp16();
//   health.parameter_gradients(nonfinite, step);     before reduction and unscaling
//   merge_into(evidence, health.end_step(rank));
//
// Cost: 1.4 us a call, and a look at each tensor between blocks on the way forward and at its
// gradient on the way back, 2 us each for 256 KiB in a cache (three times that beside fp16); on a
// device some ten small kernels each and one read a step.
//
// Underflow is counted for blocks that compute in fp16, in the scaled gradients at their
// boundaries: all values that are not 0 and below 2^-14, the least normal fp16 number; and, of an
// outgoing gradient that has such values or is 0 altogether though an incoming one is not, the
// zeros beyond the share of zeros that the incoming gradients have. Zeros of other gradients are
// those of ReLU and of masks.
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
  enum class Where { nothing, parameters, forward, backward, outside };  // parameters: before it
  Where where = Where::nothing;
  std::optional<BlockId> block;  // to blame; outside: the nearest, where there is one
  std::int64_t values = 0;       // non-finite ones that arose there
  friend bool operator==(const HealthVerdict&, const HealthVerdict&) = default;
};

// StepTrouble is what the reducer knows of a step besides the calls.
struct StepTrouble {
  std::vector<std::int64_t> in_parameters;  // non-finite gradient values per block
  std::int64_t outside = 0;                 // in parameters of no block
  std::vector<std::int64_t> parameters;     // non-finite values of the parameters, per block
  bool has_bad_loss = false;

  // Starts a step of a job with that many blocks. Takes nothing from the heap after the first one.
  void clear(std::size_t blocks) {
    in_parameters.assign(blocks, 0);
    parameters.assign(blocks, 0);
    outside = 0;
    has_bad_loss = false;
  }
};

// Largest is a magnitude of which a part may be on a device.
struct Largest {
  float here = 0;
  at::Tensor on_device;  // one fp64 number; undefined = nothing there
};

// GradientLook tells whether the gradients of a backward pass are finite, and the parameters that
// they came with. What is on a device comes by itself.
struct GradientLook {
  StepId step;
  FiniteLook gradients;
  std::optional<FiniteLook> parameters;  // none: all gradients are finite
  // Returns whether all is known. Never waits.
  bool finish() { return gradients.finish() && (!parameters || parameters->finish()); }
};

class BlockHealth {
 public:
  // Watches that many blocks, whose visits somebody else tells the ledger of, until release().
  // parameter_gradients() will speak of the gradients of `parameters`, in that order; `owners`: the
  // block of each, where it has one.
  std::shared_ptr<HealthLedger> watch(std::size_t blocks, std::span<const at::Tensor> parameters,
                                      std::vector<std::optional<BlockId>> owners);
  void release();
  bool is_watching() const { return ledger_ != nullptr; }

  // Begins a step whose losses are multiplied by `scale`, > 0.
  void begin_step(float scale);
  float scale() const { return scale_; }  // of the open step
  // Adds the non-finite values in the gradient of each parameter, before reduction, and looks
  // whether the parameters themselves are finite: one read of all of them. Called in a step that
  // goes wrong, before any update. Optional.
  void parameter_gradients(std::span<const std::int64_t> nonfinite, StepId step);
  // Marks the open step as one that goes wrong, by gradients that are not known by parameter.
  void note_wrong(StepId step) { wrong_ = step; }
  // Looks by itself whether the gradients of all parameters are finite, when a backward pass of
  // step `step` has ended and before any update; nobody waits for a device. The step goes wrong
  // where some are known not to be.
  void look_at_gradients(StepId step);
  // Returns whether the step that is open, or ended last, goes wrong by what is known now.
  bool goes_wrong() const { return wrong_.has_value(); }
  // Notes a loss of this step, of any micro-batch.
  void loss(double value);
  // Returns the largest finite scaled gradient, at a boundary or of a parameter, of blocks that
  // computed in fp16 in this step; 0 = none. Reads the gradients of such blocks' parameters once,
  // near the speed of memory. REQUIRES: gradients are not divided by anything yet.
  Largest amax_scaled_fp16();
  // Ends the step. Returns one entry a block, valid until the next step; none when no step is open.
  // Where figures are on a device and nothing went wrong, nobody waits for them: the entries are
  // then those of the newest earlier step whose figures have come, and so is the verdict.
  std::span<const BlockEvidence> end_step(RankId rank);

  const HealthVerdict& verdict() const { return verdict_; }  // of the last step that ended
  // Returns the step that went wrong by the verdict, which may have come late.
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
  std::vector<std::optional<BlockId>> owners_;  // of each
  float scale_ = 1;
  StepTrouble trouble_;
  std::optional<StepId> wrong_;  // its number, where it goes wrong
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
  std::vector<GradientLook> looks_;  // of the open step, those without an answer
  std::optional<StepId> late_step_;
};

}  // namespace cox::detail
