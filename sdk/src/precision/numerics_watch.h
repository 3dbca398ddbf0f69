// NumericsWatch is the actuator that reports what this rank sees of its blocks' numerics in a step:
// overflows with the block to blame, magnitudes, what FP8 flushed and clipped, noise of
// gradients. Fed by the calls of blocks and by the reducer, read once a step as evidence for the
// coordinator. Saves what delayed FP8 scaling remembers. Training thread only; does not
// communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/log.h"
#include "coordinator/core/settings/precision.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/precision/block_health.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/gradient_noise.h"

namespace cox::detail {

// Adds to a row what the blocks of this rank saw. `blamed`: the name of the verdict's block; empty
// = outside of all blocks.
void fill_row(metrics::StepRow& row, std::span<const BlockEvidence> evidence,
              const HealthVerdict& verdict, const std::string& blamed);

class NumericsWatch final : public Actuator {
 public:
  NumericsWatch(const PrecisionConfig& config, RankId rank, BlockWatch& blocks,
                const FormatActuator& formats, Log log)
      : config_(config), rank_(rank), blocks_(blocks), formats_(formats), log_(std::move(log)) {}

  const char* name() const override { return "precision"; }
  void attach(torch::nn::Module& model) override;
  void release() override;
  // In a loop that reduces, blocks are watched at the latest from here on.
  Status check(LoopKind loop) override;
  void forget_run() override;
  void restart_step() override { begin_step(); }
  void begin_step() override;
  // A look that fails (a device in trouble) costs the evidence, not the step.
  void end_step(const StepEnd& step, StepOutput& output) noexcept override;
  const SavedRow* saved_row() const override;
  std::vector<double> save() const override { return pack_fp8(fp8_); }
  Status load(std::span<const double> row) override { return unpack_fp8(row, fp8_); }

  // Blocks are watched from now on. `parameters`: those of the reducer, in its order; empty where
  // sets of them change, then nothing is known of their gradients. Does nothing without blocks.
  void watch(std::span<const at::Tensor> parameters);
  bool is_watching() const { return registry_ != nullptr; }

  void loss(double value) { health_.loss(value); }
  // Before the step's ballot: largest finite scaled gradient at a boundary of a block in fp16.
  float amax_scaled_fp16() { return is_watching() ? health_.amax_scaled_fp16() : 0; }
  // While .grad holds this rank's own gradients, `factor` times what the mean loss gives.
  void sample_gradients(double factor);
  // Whether sample_gradients() wants to see them in the open step.
  bool wants_gradients() const { return noise_ && noise_->is_due(steps_); }
  bool samples_gradients() const { return noise_ && config_.sample_every > 0; }  // in some step
  // Takes the number of non-finite values in this rank's gradient of each parameter; returns their
  // sum. Only in a step that goes wrong and is skipped.
  std::int64_t blame(std::span<const std::int64_t> nonfinite);

  // Of the step that ended last.
  std::span<const BlockEvidence> evidence() const { return evidence_; }
  const HealthVerdict& verdict() const { return health_.verdict(); }
  std::string blamed() const;  // name of the block; empty = nobody, or outside of all blocks

 private:
  void collect();
  void add_fp8();

  const PrecisionConfig& config_;
  const RankId rank_;
  BlockWatch& blocks_;
  const FormatActuator& formats_;
  Log log_;
  at::Device device_ = at::kCPU;       // of the model
  BlockRegistry* registry_ = nullptr;  // while blocks are watched
  BlockHealth health_;
  std::optional<GradientNoise> noise_;
  bool has_sampled_ = false;
  bool is_skipped_ = false;                          // the open step
  std::vector<std::vector<at::Tensor>> parameters_;  // of each block
  Fp8Blocks fp8_;
  std::vector<BlockEvidence> evidence_;
  std::uint64_t steps_ = 0;
  float scale_ = 1;
};

}  // namespace cox::detail
