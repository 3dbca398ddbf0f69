// NumericsWatch is the actuator that reports what this rank sees of its blocks' numerics in a step:
// overflows with the block to blame, magnitudes, what FP8 flushed and clipped, noise of gradients.
// The visits of blocks and the reducer feed it, and it is read once a step as evidence for the
// coordinator. It saves what delayed FP8 scaling remembers. Training thread only; does not
// communicate.
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
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/health_ledger.h"

namespace cox::detail {

// NoiseSettings says which blocks GradientNoise samples, and how often.
struct NoiseSettings {
  std::uint32_t sample_every = 8;   // steps; 0 = never
  std::string sample_blocks = "*";  // names, as fits_pattern reads them
};

// A block's name and its parameters that get gradients.
struct NoiseBlock {
  std::string name;
  std::vector<at::Tensor> parameters;
};

// Where among sampled values those of a gradient go that has not come from its device yet.
struct SampleHole {
  std::size_t place = 0;
  std::size_t size = 0;
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

  GradientNoise(std::vector<NoiseBlock> blocks, NoiseSettings settings);

  bool is_due(std::uint64_t step) const;
  // Reads the .grad of the sampled elements and divides it by `scale`. A block is left out this
  // time where all its gradients are missing, or one that was there before, or where one is not
  // finite in the sample. Parameters that never got a gradient count as without mean and noise.
  // What is on a device counts once it has come by itself, or never where the next sample is
  // faster.
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
    std::vector<double> values;
    std::vector<SampleHole> holes;
    HostCopy from_device;  // what goes into the holes
    double scale = 1;
  };
  static bool has_gradients(Block& block);
  static std::vector<Part> spread(const NoiseBlock& block, std::uint64_t seed);
  void take_sampled();
  void take(Block& block, std::span<const double> values);

  NoiseSettings settings_;
  std::vector<Block> blocks_;
  std::optional<Sampled> sampled_;
  bool is_new_ = false;  // a sample was completed since receive()
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

// Fp8Reading is what many blocks have counted on one device, on its way to the host in one copy.
// One thread.
class Fp8Reading {
 public:
  Fp8Reading() = default;
  // Takes over what waits in the blocks.
  explicit Fp8Reading(const Fp8Blocks& blocks);

  // Adds the counts to their blocks' once they have come. Returns whether nothing is on its way any
  // more. Never waits.
  bool finish();
  // Blocks until finish() would return true.
  void wait() const;

 private:
  struct Part {
    std::shared_ptr<Fp8Block> block;
    std::vector<Fp8Waiting> waiting;
  };
  std::vector<Part> parts_;
  HostCopy copy_;  // a row for each that waits
};

class NumericsWatch final : public Actuator, public Steering, public Reporting, public Saving {
 public:
  NumericsWatch(const PrecisionConfig& config, RankId rank, BlockWatch& blocks,
                const FormatActuator& formats, Log log)
      : config_(config), rank_(rank), blocks_(blocks), formats_(formats), log_(std::move(log)) {}

  void attach(torch::nn::Module& model) override;
  void release() override;
  // In a loop that reduces, watches the blocks from here on at the latest. Returns invalid_argument
  // where gradients of no block would be sampled.
  Status check(LoopKind loop) override;
  void forget_run() override;
  void restart_step() override { begin_step(); }
  void begin_step() override;
  // A look that fails (a device in trouble) costs the evidence, not the step.
  void end_step(const StepEnd& step, StepOutput& output) noexcept override;
  const SavedRow* saved_row() const override;
  std::vector<double> save() const override { return pack_fp8(fp8_); }
  Status load(std::span<const double> row) override { return unpack_fp8(row, fp8_); }

  // Watches the blocks of an attached model from now on. `parameters` are those of the reducer, in
  // its order; they are empty where sets of them change, and then nothing is known of their
  // gradients. Does nothing without blocks.
  void watch(std::span<const at::Tensor> parameters);
  // The same for the blocks of adopted models, with their parameters, where formats are steered.
  void watch_adopted(std::vector<NoiseBlock> blocks);
  bool is_watching() const { return !names_.empty(); }
  // Looks at the gradients of adopted models when a backward pass has ended and nobody has changed
  // them: whether they are finite, and now and then at their noise. Reads each once; does not wait
  // for a device.
  void look_at_gradients(StepId step);
  // Whether products in FP8 are counted; off while a step of the program's is run again.
  void count_fp8(Fp8Count counting);

  void loss(double value) { health_.loss(value); }
  // Returns the largest finite scaled gradient at a boundary of a block in fp16, for the step's
  // ballot.
  Largest amax_scaled_fp16() { return is_watching() ? health_.amax_scaled_fp16() : Largest(); }
  // Samples gradients. REQUIRES: .grad holds this rank's own gradients, `factor` times those of the
  // mean loss.
  void sample_gradients(double factor);
  // Returns whether sample_gradients() wants to see gradients in the open step.
  bool wants_gradients() const { return noise_ && noise_->is_due(steps_); }
  bool samples_gradients() const { return noise_ && config_.sample_every > 0; }  // in some step
  // Takes the number of non-finite values in this rank's gradient of each parameter and returns
  // their sum. Called only in a step that goes wrong and is skipped, with its number.
  std::int64_t blame(std::span<const std::int64_t> nonfinite, StepId step);

  // Return what was seen in the step that ended last.
  std::span<const BlockEvidence> evidence() const { return evidence_; }
  const HealthVerdict& verdict() const { return health_.verdict(); }
  std::string blamed() const;  // name of the block; empty = nobody, or outside of all blocks

 private:
  void watch_visits(std::vector<NoiseBlock> blocks, std::span<const at::Tensor> parameters,
                    std::vector<std::vector<BlockId>> owners);
  void name(std::vector<NoiseBlock> blocks);
  void collect();
  void read_fp8();
  void add_fp8();
  void tell_parameters();
  void note_looks(bool found_trouble);

  const PrecisionConfig& config_;
  const RankId rank_;
  BlockWatch& blocks_;
  const FormatActuator& formats_;
  Log log_;
  at::Device device_ = at::kCPU;    // of the model
  std::vector<std::string> names_;  // of the blocks, while they are watched
  BlockHealth health_;
  VisitHealth visits_;
  bool watches_adopted_ = false;
  std::optional<GradientNoise> noise_;
  bool has_sampled_ = false;
  bool is_skipped_ = false;              // the open step
  StepId skipped_step_{};                // the last one that went wrong
  StepId looked_at_{};                   // the last one whose gradients were looked at here
  std::optional<StepId> spoiled_since_;  // parameters are not finite from before it on
  Fp8Blocks fp8_;
  Fp8Reading fp8_reading_;  // counts of an earlier step
  std::vector<BlockEvidence> evidence_;
  std::uint64_t steps_ = 0;
  float scale_ = 1;
};

}  // namespace cox::detail
