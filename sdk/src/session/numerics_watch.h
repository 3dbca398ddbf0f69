// NumericsWatch: what this rank knows of its blocks' numbers in one step: overflows with the block
// to blame, magnitudes, what FP8 flushed and clipped, noise of gradients, curvature. Fed by the
// calls of blocks and by the reducer, read once a step as evidence for the coordinator. Owned by
// SessionState; training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/log.h"
#include "coordinator/core/settings/precision.h"
#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/precision/block_health.h"
#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/gradient_noise.h"

namespace cox::detail {

class NumericsWatch {
 public:
  NumericsWatch(const PrecisionConfig& config, Log log) : config_(config), log_(std::move(log)) {}

  // `parameters`: those of the reducer, in its order; empty where sets of them change, then nothing
  // is known of their gradients. `device`: of the model. The registry must stay until release().
  void attach(BlockRegistry& registry, std::span<const at::Tensor> parameters, at::Device device);
  void release();
  bool is_attached() const { return registry_ != nullptr; }

  // `scale`: what the losses of the step are multiplied with.
  void begin_step(float scale);
  // Whatever blocks saw in FP8 since the last step ended was a trial.
  void forget();
  void loss(double value) { health_.loss(value); }

  // Before the step's ballot: largest finite scaled gradient at a boundary of a block in fp16.
  float amax_scaled_fp16() { return is_attached() ? health_.amax_scaled_fp16() : 0; }
  // While .grad holds this rank's own gradients, `factor` times what the mean loss gives.
  void sample_gradients(double factor);
  // Whether sample_gradients() wants to see them in the open step.
  bool wants_gradients() const { return noise_ && noise_->is_due(steps_); }
  bool samples_gradients() const { return noise_ && config_.sample_every > 0; }  // in some step
  // Takes the number of non-finite values in this rank's gradient of each parameter; returns their
  // sum. Only in a step that goes wrong and is skipped.
  std::int64_t blame(std::span<const std::int64_t> nonfinite);

  // Largest eigenvalues by `loss`, where a probe is due (precision.curvature_every).
  void probe_curvature(std::uint64_t step, torch::nn::Module& model,
                       const std::function<at::Tensor()>& loss, RankId rank);

  // What delayed FP8 scaling remembers here, between steps (pack_fp8).
  std::vector<double> fp8_state() const { return pack_fp8(fp8_); }
  Status load_fp8(std::span<const double> row) { return unpack_fp8(row, fp8_); }

  // Ends the step. One entry a block, valid until the next step; empty where there are no blocks,
  // and where looking failed (a device in trouble): that costs the evidence, not the step.
  std::span<const BlockEvidence> end_step(RankId rank) noexcept;
  const HealthVerdict& verdict() const { return health_.verdict(); }  // of that step
  std::string blamed() const;  // name of the block; empty = nobody, or outside of all blocks

 private:
  void collect(RankId rank);
  void add_fp8(RankId rank);

  const PrecisionConfig& config_;
  Log log_;
  BlockRegistry* registry_ = nullptr;
  BlockHealth health_;
  std::optional<GradientNoise> noise_;
  bool has_sampled_ = false;
  bool is_skipped_ = false;                          // the open step
  std::vector<std::vector<at::Tensor>> parameters_;  // of each block
  Fp8Blocks fp8_;
  std::vector<Magnitude> curvature_;  // found in this step; else empty
  std::vector<BlockEvidence> evidence_;
  std::uint64_t steps_ = 0;
  float scale_ = 1;
};

}  // namespace cox::detail
