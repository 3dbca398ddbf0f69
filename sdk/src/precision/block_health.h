// BlockHealth: which block of this rank an overflow arose in, and how close to its format's limits
// each block works. Calls of blocks report to its ledger while a step is open (HealthCall); when
// the step ends it names the block to blame (health_verdict.h) and fills the evidence. Owned by a
// session; used by the thread that trains. Does not communicate. Per step and rank:
//
//   health.begin_step(scale);          forward, backward ...
//   ballot.amax = health.amax_scaled_fp16();
//   health.parameter_gradients(nonfinite);      before reduction and unscaling
//   merge_into(evidence, health.end_step(rank));
//
// Cost: 1.4 us a call, and a look at each tensor between blocks on the way forward and at its
// gradient on the way back, 2 us each for 256 KiB in a cache (three times that beside fp16); on a
// device some ten small kernels each and one read a step.
//
// Underflow, for blocks that compute in fp16, of the scaled gradients at their boundaries: all that
// are not 0 and below 2^-14, the least normal fp16 number; and, of an outgoing gradient that has
// such values or is 0 altogether though an incoming one is not, the zeros beyond the share of zeros
// that the incoming gradients have. Zeros of other gradients are those of ReLU and of masks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "sdk/src/precision/health_ledger.h"
#include "sdk/src/precision/health_verdict.h"

namespace cox::detail {

class BlockRegistry;

class BlockHealth {
 public:
  // Listens to the blocks of `registry` from now on, until detach(). `parameters`: those whose
  // gradients parameter_gradients() will speak of, in its order.
  void attach(BlockRegistry& registry, std::span<const at::Tensor> parameters);
  void detach(BlockRegistry& registry);
  bool is_attached() const { return ledger_ != nullptr; }

  // `scale`: what the losses of this step are multiplied with; > 0.
  void begin_step(float scale);
  // Non-finite values in the gradient of each parameter, before reduction. Optional; adds up.
  void parameter_gradients(std::span<const std::int64_t> nonfinite);
  // A loss of this step, of any micro-batch.
  void loss(double value);
  // Largest finite scaled gradient, at a boundary or of a parameter, of blocks that computed in
  // fp16 in this step; 0 = none. Before gradients are divided by anything. Reads the parameters' of
  // such blocks once, near the speed of memory; waits for the device where there is one.
  float amax_scaled_fp16();
  // One entry a block, valid until the next step. Empty when no step is open.
  std::span<const BlockEvidence> end_step(RankId rank);

  const HealthVerdict& verdict() const { return verdict_; }  // of the last step that ended

 private:
  float amax_of_parameters(const std::vector<bool>& is_in_fp16) const;
  void note(const BlockCallRecord& call, RankId rank);
  void blame(RankId rank);

  std::shared_ptr<HealthLedger> ledger_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<BlockId>> owners_;  // of each
  float scale_ = 1;
  StepTrouble trouble_;
  HealthVerdict verdict_;
  std::vector<BlockEvidence> evidence_;
};

// The blocks that a parameter belongs to: of nested blocks the innermost, of several that share it
// each. One entry a parameter.
std::vector<std::vector<BlockId>> owners_of(const BlockRegistry& registry,
                                            std::span<const at::Tensor> parameters);

}  // namespace cox::detail
