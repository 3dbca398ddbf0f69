// NumericsWatch is the actuator that reports what this rank sees of its blocks' numerics in a step:
// overflows with the block to blame, magnitudes, what FP8 flushed and clipped, noise of gradients.
// The visits of blocks and the reducer feed its parts, and it reads them once a step as evidence
// for the coordinator. Training thread only; does not communicate.
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

// A block's name and its parameters that get gradients.
struct NoiseBlock {
  std::string name;
  std::vector<at::Tensor> parameters;
};

// SampledValues collects elements of many gradients in order. It reads what lies in the host's
// memory at once; all else comes from its device in one copy.
class SampledValues {
 public:
  // `positions`: flat; `on_device`: the same where the gradient is, undefined for the CPU's.
  void add(const at::Tensor& gradient, std::span<const std::int64_t> positions,
           const at::Tensor& on_device);
  void add_zeros(std::size_t count) { values_.resize(values_.size() + count); }
  std::size_t size() const { return values_.size(); }

  // Lets what is on devices set out; nothing is added from here on.
  void set_out();
  // Returns whether all values are here. Never waits.
  bool finish();
  std::span<double> values() { return values_; }

 private:
  // Values go here that have not come from their device yet.
  struct Hole {
    std::size_t place = 0;
    std::size_t size = 0;
  };
  std::vector<double> values_;
  std::vector<at::Tensor> gathered_;
  std::vector<Hole> holes_;
  HostCopy from_device_;
};

// GradientNoise estimates the noise over the signal of each block's gradient, from moving averages
// over a fixed sample of its elements, at most kElements of them, evenly spread over the block's
// parameters from a seeded start. With g a sampled element of one step's unscaled gradient:
//
//   m <- b m + (1-b) g,  v <- b v + (1-b) g^2,  each divided by 1 - b^n after n samples;
//   q = sum of the squared weights of the n samples = (1-b)/(1+b) * (1+b^n)/(1-b^n);
//   variance = (v - m^2) / (1 - q),  signal = (m^2 - q v) / (1 - q);
//   ratio = sum of variance / sum of signal, over the elements.
//
// E[m^2] = mean^2 + q variance, so both are free of the window's bias for gradients that are
// independent from step to step; drift of the mean within the window counts as noise. The ratio is
// the trace of the gradient's covariance over its squared norm, the "simple noise scale" of
// McCandlish et al. (arXiv:1812.06162, section 2.2) in units of the batch in use. No unit of the
// loss is left in it: a factor 2^k changes no bit of it. A signal lost in noise gives kLargest.
//
// Cost: on the CPU one read of memory a sampled element, 6 us a block in a step that samples, 60
// where no gradient is in a cache, nothing in other steps; on a device one gather a parameter and
// one copy to the host for all blocks. A session owns it; the thread that trains uses it. It does
// not communicate.
class GradientNoise {
 public:
  static constexpr std::int64_t kElements = 1024;
  static constexpr double kDecay = 0.9;        // b
  static constexpr std::uint32_t kEnough = 8;  // samples before there is a ratio
  static constexpr float kLargest = 1e6F;

  // Samples nothing.
  GradientNoise() = default;
  // Samples as the settings say.
  GradientNoise(const std::vector<NoiseBlock>& blocks, const PrecisionConfig& config);

  void begin_step();
  // Returns whether gradients are to be sampled in the open step, and whether they were.
  bool is_due() const { return samples() && step_ % every_steps_ == 0; }
  bool has_sampled() const { return has_sampled_; }
  // Returns whether they are sampled in some step.
  bool samples() const { return every_steps_ > 0; }
  // Reads the .grad of the sampled elements, this rank's own gradients times `scale`. Does nothing
  // in a step in which it is not due. A block is left out this time where all its gradients are
  // missing, or one that was there before, or where one is not finite in the sample. Parameters
  // that never got a gradient count as without mean and noise. What is on a device counts once it
  // has come by itself, or never where the next sample is faster.
  void sample(double scale);
  // Takes what has come from a device. Returns whether a sample is complete since the last call.
  // Never waits.
  bool receive();
  // Returns nothing for a block that is not sampled, or has fewer than kEnough samples.
  std::optional<float> ratio(std::size_t block) const;
  // Writes the ratio of each block that was part of the last sample. REQUIRES: an entry a block.
  void fill(std::span<BlockEvidence> evidence) const;

 private:
  struct Part {
    at::Tensor parameter;
    std::vector<std::int64_t> positions;  // flat
    at::Tensor on_device;                 // the same, where the parameter is; undefined on the CPU
    bool had_gradient = false;            // in some sample
  };
  struct Block {
    std::vector<Part> parts;
    std::vector<double> mean;
    std::vector<double> square;
    std::uint32_t samples = 0;
    bool was_sampled = false;
    std::size_t first = 0;  // of its values among those of a step
  };
  // A sample of which a part may still be on its way.
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

// Adds to a row what the blocks of this rank saw. `blamed`: the name of the verdict's block; empty
// = outside of all blocks.
void fill_row(metrics::StepRow& row, std::span<const BlockEvidence> evidence,
              const HealthVerdict& verdict, const std::string& blamed);

// VisitHealth writes down the visits of blocks in the ledger: whoever follows the operator stream
// tells it of the tensors that operators read. What crosses from visit to visit is a result of the
// one in which autograd made it, as the numbers of its nodes tell, and an input of each that reads
// it. The data that a visit begins with have no node: they are an input of the visit whose
// parameter is read first together with them. What comes out of a pass's last visit is not seen.
// Training thread only. A look that fails (out of memory, say) costs the figures, never the
// operator.
class VisitHealth final : public VisitObserver {
 public:
  void watch(std::shared_ptr<HealthLedger> ledger) { ledger_ = std::move(ledger); }
  void begin_step();
  void parameter(BlockId block, std::optional<ProductFormat> format) noexcept override;
  void operand(const at::Tensor& tensor) noexcept override;
  void leave() noexcept override;

 private:
  struct Visit {
    std::size_t call;          // in the ledger
    std::uint64_t first_node;  // of autograd's, made in it or later
  };
  void enter(BlockId block);
  void look(const at::Tensor& tensor);

  std::shared_ptr<HealthLedger> ledger_;
  std::vector<Visit> visits_;  // of the step
  std::optional<BlockId> block_;
  bool awaits_data_ = false;  // nothing was read in the visit that lasts
  std::uint64_t parameter_read_by_ = 0;
  // What the operator that runs has read before it reads a parameter; valid while it runs.
  std::uint64_t operands_read_by_ = 0;
  c10::SmallVector<at::TensorImpl*, 4> operands_;
  std::size_t inputs_added_ = 0;  // to the visit that lasts, by that operator
};

class NumericsWatch final : public Actuator, public Steering, public Reporting {
 public:
  // All of them outlive this.
  NumericsWatch(const PrecisionConfig& config, RankId rank, BlockWatch& blocks,
                const LossScale& loss_scale, Fp8Watch& fp8, Log log)
      : config_(config),
        rank_(rank),
        blocks_(blocks),
        loss_scale_(loss_scale),
        fp8_(fp8),
        log_(std::move(log)) {}

  void release() override;
  // In a loop that reduces, watches the blocks from here on at the latest. Returns invalid_argument
  // where gradients of no block would be sampled.
  Status check(LoopKind loop) override;
  void restart_step() override { begin_step(); }
  void begin_step() override;
  // A look that fails (a device in trouble) costs the evidence, not the step.
  void end_step(const StepEnd& step, StepOutput& output) noexcept override;

  // Watches the blocks of an attached model from now on. `parameters` are those of the reducer, in
  // its order; they are empty where sets of them change, and then nothing is known of their
  // gradients. Does nothing without blocks.
  void watch(std::span<const at::Tensor> parameters);
  // The same for the blocks of adopted models, with their parameters.
  void watch_adopted(std::vector<NoiseBlock> blocks);
  // Looks at the gradients of adopted models when a backward pass has ended and nobody has changed
  // them: whether they are finite, and now and then at their noise. Reads each once; does not wait
  // for a device.
  void look_at_gradients(StepId step);

  // Returns the part that finds overflows. The loop gives it losses, and the gradients of a step
  // that goes wrong.
  BlockHealth& health() { return health_; }
  const BlockHealth& health() const { return health_; }
  // Returns the part that samples gradients.
  GradientNoise& noise() { return noise_; }
  // Returns the block to blame for the step that ended last; empty = nobody, or outside of all
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
  std::optional<StepId> spoiled_since_;  // parameters are not finite from before it on
  std::vector<BlockEvidence> evidence_;  // of the step that ended last
};

}  // namespace cox::detail
