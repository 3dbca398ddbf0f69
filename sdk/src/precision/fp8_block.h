// State that a block's products keep from step to step to run in FP8 (fp8_tensors.h). Fp8Products
// (fp8_operator.h) runs the products. Any thread may call any function. REQUIRES everywhere:
// gradients and autocast are off.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/settings/precision.h"
#include "coordinator/core/status.h"
#include "sdk/src/precision/float_codec.h"
#include "sdk/src/precision/fp8_tensors.h"

namespace cox::detail {

// Fp8Recipe selects how tensors are scaled. Scales are powers of two. So scaling is exact, only the
// cast rounds, and results do not depend on the place of a scale in a product.
// - Weights are scaled by their own largest magnitude: per tensor, or per output row with
//   Fp8Granularity::row.
// - With `current` scaling, activations and gradients are scaled by their own largest magnitude,
//   per tensor or per row (of all dimensions but the last).
// - With `delayed` scaling, one scale for the whole tensor follows from the largest magnitude of
//   the last `history` steps. The first step has no history and counts as current.
// - Backward uses the tensors stored by forward. Rows keep their scales along the output dimension
//   of the forward product, also if a gradient sums over the dimension.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::current;
  Fp8Granularity granularity = Fp8Granularity::tensor;
  std::uint32_t history = 16;  // steps, >= 1
  std::uint32_t margin = 0;    // bits kept free above the largest magnitude, 0 .. 16

  // Returns the granularity of tensors scaled by their own magnitude.
  Fp8Granularity own_granularity() const {
    return scaling == Fp8Scaling::current ? granularity : Fp8Granularity::tensor;
  }

  friend bool operator==(const Fp8Recipe&, const Fp8Recipe&) = default;
};
inline Fp8Recipe fp8_recipe(const PrecisionConfig& config) {
  return {config.fp8_scaling, config.fp8_granularity, config.fp8_history, config.fp8_margin};
}

// Fp8Counts counts activations and gradients together, without weights.
struct Fp8Counts {
  std::uint64_t sampled = 0;    // values quantised
  std::uint64_t underflow = 0;  // non-zero values made zero
  std::uint64_t saturated = 0;  // finite values clipped
  float activation_amax = 0;    // largest finite magnitudes; 0 = none seen
  float gradient_amax = 0;      // includes the loss scale
  friend bool operator==(const Fp8Counts&, const Fp8Counts&) = default;
};

// AmaxHistory holds, for one operand of one product, the largest magnitude for delayed scaling and
// extra free bits. A step with clipped values adds one bit, up to 8; 64 steps without clipping
// remove one.
class AmaxHistory {
 public:
  static constexpr std::uint32_t kMostExtra = 8;  // bits
  static constexpr std::uint32_t kStepsToForgive = 64;

  explicit AmaxHistory(std::uint32_t steps) : amax_(steps, 0.0f) {}

  void see(const QuantizeCounts& counts);
  // Ends a step with the values seen since the last call. A step without values changes nothing.
  void end_step();
  // Discards the values seen since the last end_step().
  void drop_step() { step_ = {}; }

  bool is_empty() const { return filled_ == 0; }
  float amax() const;  // largest of the stored steps
  std::uint32_t extra_margin() const { return extra_; }

  // Appends the history without the open step.
  void append_to(std::vector<double>& state) const;
  // Reads its figures from the front of `state`. Returns invalid_argument for damaged figures.
  Status read(std::span<const double>& state);

 private:
  std::vector<float> amax_;  // a circular buffer
  std::uint32_t next_ = 0;
  std::uint32_t filled_ = 0;
  std::uint32_t extra_ = 0;
  std::uint32_t clean_steps_ = 0;
  QuantizeCounts step_;
};

enum class Fp8Side : std::uint8_t { activation, gradient };
enum class Fp8Count : std::uint8_t { on, off };  // off in second runs and evaluations

// A product's counts that are still on a device.
struct Fp8Waiting {
  Fp8Side side;
  std::size_t product;
  Fp8Seen seen;
};

// Fp8Block holds one block's state for FP8 products between steps: the recipe, the histories of
// delayed scaling (AmaxHistory), and counts. The session makes one for each block; the block's
// calls, their graphs and the session share ownership. All methods are thread-safe, because
// backward may run on a thread of autograd.
class Fp8Block {
 public:
  // Later products share one history.
  static constexpr std::size_t kMostProducts = 1024;

  // `shapes` belongs to the block's device; null if FP8 is only emulated.
  explicit Fp8Block(Fp8Recipe recipe, std::shared_ptr<Fp8Shapes> shapes = nullptr);

  const Fp8Recipe& recipe() const { return recipe_; }
  Fp8Means means() const { return shapes_ ? Fp8Means::hardware : Fp8Means::emulation; }
  // Returns whether FP8 pays for a product of the shape; always true if FP8 is only emulated.
  bool takes(const ProductShape& shape);

  // Returns the counts since the last call, without those still on a device.
  Fp8Counts take_counts();
  // Moves out the counts still on the device, so that Fp8Reading reads the counts of many blocks at
  // once. add() adds them after the read.
  std::vector<Fp8Waiting> take_waiting();
  void add(const Fp8Waiting& waiting, const QuantizeCounts& counts);
  // Ends an optimizer step: histories advance.
  void end_step();
  // Discards the values seen since the last step. Called after a skipped step, whose magnitudes
  // must not scale later ones, and after a trial.
  void drop_step();

  // Returns whether delayed scaling has any history.
  bool remembers() const;
  // Clears all history.
  void forget();
  // Returns histories and margins, so that delayed scaling continues bit for bit. REQUIRES: called
  // between steps.
  std::vector<double> state() const;
  // Returns invalid_argument for a damaged state or one of another recipe; changes nothing then.
  Status load_state(std::span<const double> state);

  // Turns counts and histories on or off. Off during trials, which are no evidence.
  void count(Fp8Count counting);

  // Returns the scale from earlier steps, or nothing if a tensor is scaled by its own magnitude.
  // Called by products.
  std::optional<at::Tensor> earlier_scale(Fp8Side side, std::size_t product, at::Device device);
  void see(Fp8Side side, std::size_t product, const Fp8Seen& seen);

 private:
  AmaxHistory& history(Fp8Side side, std::size_t product);
  void note(Fp8Side side, std::size_t product, const QuantizeCounts& counts);

  const Fp8Recipe recipe_;
  const std::shared_ptr<Fp8Shapes> shapes_;
  mutable std::mutex mutex_;
  Fp8Count counting_ = Fp8Count::on;
  std::vector<AmaxHistory> histories_;  // two for each product (Fp8Side)
  std::vector<Fp8Waiting> waiting_;
  Fp8Counts counts_;
};

using Fp8Blocks = std::vector<std::shared_ptr<Fp8Block>>;

// Returns the states of all blocks of one rank as one row, for saves and snapshots: the number of
// blocks, then each state's length and values. Returns an empty row if no block has any history.
std::vector<double> pack_fp8(const Fp8Blocks& blocks);

// Loads a row of pack_fp8(). An empty row clears all blocks' history. Returns invalid_argument for
// other blocks, another recipe or a damaged row; changes nothing then.
Status unpack_fp8(std::span<const double> row, const Fp8Blocks& blocks);

}  // namespace cox::detail
