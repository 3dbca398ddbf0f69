// NumericsWatch is the actuator for the numerics of a rank's blocks in a step: overflows and the
// block to blame, magnitudes, values flushed or clipped by FP8, gradient noise. Visits of blocks
// and the reducer feed its parts. Once a step it reads the parts as evidence for the coordinator.
// Training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

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
#include "sdk/src/device/transfer.h"
#include "sdk/src/precision/block_health.h"
#include "sdk/src/precision/health_ledger.h"

namespace cox::detail {

class Fp8Watch;
class LossScale;

// A block's name and its parameters with gradients.
struct NoiseBlock {
  std::string name;
  std::vector<at::Tensor> parameters;
};

// SampledValues collects elements of many gradients in order. Host memory is read at once; elements
// on a device arrive in one copy.
class SampledValues {
 public:
  // `positions`: flat. `on_device`: the same positions on the gradient's device; undefined for the
  // CPU.
  void add(const at::Tensor& gradient, std::span<const std::int64_t> positions,
           const at::Tensor& on_device);
  void add_zeros(std::size_t count) { values_.resize(values_.size() + count); }
  std::size_t size() const { return values_.size(); }

  // Starts the copy from devices; nothing may be added later.
  void set_out();
  // Returns whether all values have arrived. Never waits.
  bool finish();
  std::span<double> values() { return values_; }

 private:
  // Place of values that have not arrived from their device.
  struct Hole {
    std::size_t place = 0;
    std::size_t size = 0;
  };
  std::vector<double> values_;
  std::vector<at::Tensor> gathered_;
  std::vector<Hole> holes_;
  HostCopy from_device_;
};

// GradientNoise estimates the noise over the signal of each block's gradient. Keeps moving averages
// over a fixed sample of at most kElements gradient elements, spread evenly over the block's
// parameters from a seeded start. With g a sampled element of one step's unscaled gradient:
//
//   m <- b m + (1-b) g,  v <- b v + (1-b) g^2,  each divided by 1 - b^n after n samples;
//   q = sum of the squared weights of the n samples = (1-b)/(1+b) * (1+b^n)/(1-b^n);
//   variance = (v - m^2) / (1 - q),  signal = (m^2 - q v) / (1 - q);
//   ratio = sum of variance / sum of signal, over the elements.
//
// E[m^2] = mean^2 + q variance. So for gradients that are independent from step to step, variance
// and signal are free of the window's bias. Drift of the mean within the window counts as noise.
// The ratio is the trace of the gradient's covariance over its squared norm, the "simple noise
// scale" of McCandlish et al. (arXiv:1812.06162, section 2.2) in units of the batch in use. The
// loss's unit cancels: a factor 2^k changes no bit of the ratio. A signal lost in noise gives
// kLargest.
//
// Cost on the CPU: one read of memory for each sampled element, 6 us a block in a sampled step, 60
// if no gradient is in a cache. Cost on a device: one gather for each parameter and one copy to the
// host. Other steps cost nothing. A session owns it. Training thread only; no communication.
class GradientNoise {
 public:
  static constexpr std::int64_t kElements = 1024;
  static constexpr double kDecay = 0.9;        // b
  static constexpr std::uint32_t kEnough = 8;  // samples before the first ratio
  static constexpr float kLargest = 1e6F;

  // Samples nothing.
  GradientNoise() = default;
  // Samples as the settings say.
  GradientNoise(const std::vector<NoiseBlock>& blocks, const PrecisionConfig& config);

  void begin_step();
  // Return whether the open step is to sample gradients, and whether it has sampled them.
  bool is_due() const { return samples() && step_ % every_steps_ == 0; }
  bool has_sampled() const { return has_sampled_; }
  // Returns whether any step is sampled.
  bool samples() const { return every_steps_ > 0; }
  // Reads .grad of the sampled elements: this rank's own gradients times `scale`. Does nothing
  // unless is_due(). Skips a block for this sample if all of its gradients or an earlier one are
  // missing, or if one is not finite in the sample. A parameter that never had a gradient has no
  // mean and no noise. Values on a device count after they arrive, or never if the next sample is
  // faster.
  void sample(double scale);
  // Adds the values that have arrived from a device. Returns whether a sample became complete since
  // the last call. Never waits.
  bool receive();
  // Returns nothing for a block that is not sampled, or has fewer than kEnough samples.
  std::optional<float> ratio(std::size_t block) const;
  // Writes the ratio of each block in the last sample. REQUIRES: an entry for each block.
  void fill(std::span<BlockEvidence> evidence) const;

 private:
  struct Part {
    at::Tensor parameter;
    std::vector<std::int64_t> positions;  // flat
    at::Tensor on_device;       // the same on the parameter's device; undefined on the CPU
    bool had_gradient = false;  // in some sample
  };
  struct Block {
    std::vector<Part> parts;
    std::vector<double> mean;
    std::vector<double> square;
    std::uint32_t samples = 0;
    bool was_sampled = false;
    std::size_t first = 0;  // position of the block's first value in a step's sample
  };
  // A sample, part of which may still be on its way.
  struct Sampled {
    SampledValues gradients;
    double scale = 1;
  };
  static bool has_gradients(Block& block);
  static std::vector<Part> spread(const NoiseBlock& block, std::uint64_t seed);
  void take_sampled();
  void take(Block& block, std::span<const double> values);

  std::uint32_t every_steps_ = 0;  // 0 = never
  std::vector<Block> blocks_;
  std::optional<Sampled> sampled_;
  bool is_new_ = false;  // a sample was completed since receive()
  std::uint64_t step_ = 0;
  bool has_sampled_ = false;  // in the open step
};

// Adds the blocks' evidence of this rank to a row. `blamed`: the name of the verdict's block;
// empty: outside of all blocks.
void fill_row(metrics::StepRow& row, std::span<const BlockEvidence> evidence,
              const HealthVerdict& verdict, const std::string& blamed);

// VisitHealth records the visits of blocks in the ledger. The follower of the operator stream calls
// it for every tensor that operators read. A tensor that crosses between visits is an input of each
// visit that reads the tensor. The tensor is an output of the visit in which autograd made its
// node, found by the node's number. Data at the beginning of a visit has no node, and is an input
// of the visit whose parameter is read first together with the data. Outputs of a pass's last visit
// are not seen. Training thread only. A scan that fails (out of memory, say) costs its figures,
// never the operator.
class VisitHealth final : public VisitObserver {
 public:
  void watch(std::shared_ptr<HealthLedger> ledger) { ledger_ = std::move(ledger); }
  void begin_step();
  void parameter(BlockId block, std::optional<ProductFormat> format) noexcept override;
  void operand(const at::Tensor& tensor) noexcept override;
  void leave() noexcept override;

 private:
  struct Visit {
    std::size_t call;          // number in the ledger
    std::uint64_t first_node;  // first node that autograd made in the visit or later
  };
  void enter(BlockId block);
  void look(const at::Tensor& tensor);

  std::shared_ptr<HealthLedger> ledger_;
  std::vector<Visit> visits_;  // in the step
  std::optional<BlockId> block_;
  bool awaits_data_ = false;  // the current visit has read nothing
  std::uint64_t parameter_read_by_ = 0;
  // Tensors that the running operator read before a parameter; valid while the operator runs.
  std::uint64_t operands_read_by_ = 0;
  c10::SmallVector<at::TensorImpl*, 4> operands_;
  std::size_t inputs_added_ = 0;  // inputs that the running operator added to the current visit
};

class NumericsWatch final : public Actuator, public Steering, public Reporting {
 public:
  // All arguments outlive the watch.
  NumericsWatch(const PrecisionConfig& config, RankId rank, BlockWatch& blocks,
                const LossScale& loss_scale, Fp8Watch& fp8, Log log)
      : config_(config),
        rank_(rank),
        blocks_(blocks),
        loss_scale_(loss_scale),
        fp8_(fp8),
        log_(std::move(log)) {}

  void release() override;
  // In a reducing loop, starts watching the blocks at the latest now. Returns invalid_argument if
  // no block's gradients would be sampled.
  Status check(LoopKind loop) override;
  void restart_step() override { begin_step(); }
  void begin_step() override;
  // A failed scan (a device in trouble) costs the evidence, not the step.
  void end_step(const StepEnd& step, StepOutput& output) noexcept override;

  // Watches the blocks of an attached model from now on. `parameters` are the reducer's, in its
  // order. An empty span means that the reducer's parameters change; gradients are then not
  // checked. Does nothing without blocks.
  void watch(std::span<const at::Tensor> parameters);
  // The same for the blocks of adopted models, with their parameters.
  void watch_adopted(std::vector<NoiseBlock> blocks);
  // Checks the gradients of adopted models after a backward pass and before any change: whether
  // they are finite and, in sampled steps, their noise. Reads each gradient once; never waits for a
  // device.
  void look_at_gradients(StepId step);

  // Returns the part that finds overflows. The loop passes losses, and the gradients of a wrong
  // step.
  BlockHealth& health() { return health_; }
  const BlockHealth& health() const { return health_; }
  // Returns the part that samples gradients.
  GradientNoise& noise() { return noise_; }
  // Returns the block to blame for the last ended step; empty if there is none, or outside of all
  // blocks.
  std::string blamed() const;

 private:
  void watch_visits(std::vector<NoiseBlock> blocks, std::span<const at::Tensor> parameters,
                    std::vector<std::optional<BlockId>> owners);
  void collect();
  void tell_parameters();

  const PrecisionConfig& config_;
  const RankId rank_;
  BlockWatch& blocks_;
  const LossScale& loss_scale_;
  Fp8Watch& fp8_;
  Log log_;
  BlockHealth health_;
  VisitHealth visits_;
  GradientNoise noise_;
  std::optional<StepId> spoiled_since_;  // parameters were not finite before this step
  std::vector<BlockEvidence> evidence_;  // evidence of the last ended step
};

}  // namespace cox::detail
