// What the products of a block keep from step to step to run in FP8 (fp8_tensors.h); Fp8Products
// (fp8_operator.h) runs them. Any thread may call any function. REQUIRES everywhere: gradients and
// autocast are off.
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

// Fp8Recipe says how tensors are scaled. Scales are powers of two: scaling is then exact, only the
// cast rounds, and results do not depend on where in a product a scale is applied.
// - Weights are scaled by their own largest magnitude: per tensor, or per output row with
//   Fp8Granularity::row.
// - Activations and gradients are scaled by their own largest magnitude with `current` scaling, per
//   tensor or per row (of all dimensions but the last); with `delayed` scaling by the largest of
//   the last `history` steps, one scale for the whole tensor. The first step, which has no history,
//   counts as current.
// - Backward uses what forward stored: rows keep the scales that they have along the output
//   dimension of a forward product, also where a gradient sums over it.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::current;
  Fp8Granularity granularity = Fp8Granularity::tensor;
  std::uint32_t history = 16;  // steps, >= 1
  std::uint32_t margin = 0;    // bits that stay free above the largest magnitude, 0 .. 16

  // Of tensors that are scaled by their own magnitude.
  Fp8Granularity own_granularity() const {
    return scaling == Fp8Scaling::current ? granularity : Fp8Granularity::tensor;
  }

  friend bool operator==(const Fp8Recipe&, const Fp8Recipe&) = default;
};
inline Fp8Recipe fp8_recipe(const PrecisionConfig& config) {
  return {config.fp8_scaling, config.fp8_granularity, config.fp8_history, config.fp8_margin};
}

// Counts of activations and gradients together; weights are not counted.
struct Fp8Counts {
  std::uint64_t sampled = 0;    // values quantised
  std::uint64_t underflow = 0;  // of these: not zero, and made zero
  std::uint64_t saturated = 0;  // of these: finite, and clipped
  float activation_amax = 0;    // largest finite magnitudes; 0 = nothing seen
  float gradient_amax = 0;      // with the loss scale in it
  friend bool operator==(const Fp8Counts&, const Fp8Counts&) = default;
};

// AmaxHistory gives the largest magnitude from which delayed scaling scales one operand of one
// product, and the bits to leave free because scales were too tight. A step in which values were
// clipped costs one bit more (8 at most); 64 steps without give one back.
class AmaxHistory {
 public:
  static constexpr std::uint32_t kMostExtra = 8;  // bits
  static constexpr std::uint32_t kStepsToForgive = 64;

  explicit AmaxHistory(std::uint32_t steps) : amax_(steps, 0.0f) {}

  void see(const QuantizeCounts& counts);
  // Takes what was seen since the last call as one step; nothing seen, nothing changes.
  void end_step();
  // Forgets what was seen since then.
  void drop_step() { step_ = {}; }

  bool is_empty() const { return filled_ == 0; }
  float amax() const;  // largest of the steps kept
  std::uint32_t extra_margin() const { return extra_; }

  // Appends the history without the step that is under way.
  void append_to(std::vector<double>& state) const;
  // Takes its figures from the front of `state`. Returns invalid_argument for damaged ones.
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

// What a product counted, and a device has not told yet.
struct Fp8Waiting {
  Fp8Side side;
  std::size_t product;
  Fp8Seen seen;
};

// Fp8Block is what one block keeps from step to step to run its linear products in FP8: the recipe,
// the largest magnitudes and margins of delayed scaling (AmaxHistory), and counts. The session
// makes one per block; the block's calls, their graphs and the session own it together. All methods
// of Fp8Block are thread-safe, because backward may run on a thread of autograd's.
class Fp8Block {
 public:
  // All products from this one on share a history.
  static constexpr std::size_t kMostProducts = 1024;

  // `shapes` belongs to the device that the block runs on; null where FP8 is only emulated.
  explicit Fp8Block(Fp8Recipe recipe, std::shared_ptr<Fp8Shapes> shapes = nullptr);

  const Fp8Recipe& recipe() const { return recipe_; }
  Fp8Means means() const { return shapes_ ? Fp8Means::hardware : Fp8Means::emulation; }
  // Returns whether a product of that shape is worth it; always true where FP8 is only emulated.
  bool takes(const ProductShape& shape);

  // Returns the counts since the last call, without those that wait on a device.
  Fp8Counts take_counts();
  // Takes away the counts that are on the device, for one read of those of many blocks
  // (Fp8Reading), which are then added by add().
  std::vector<Fp8Waiting> take_waiting();
  void add(const Fp8Waiting& waiting, const QuantizeCounts& counts);
  // Tells that the optimizer has stepped: histories move on.
  void end_step();
  // Forgets what was seen since the last step, because the step was skipped, so that its magnitudes
  // must not scale later ones, or because it was a trial.
  void drop_step();

  // Returns whether delayed scaling has seen anything.
  bool remembers() const;
  // Returns to the state in which it has not.
  void forget();
  // Returns histories and margins, so that delayed scaling goes on bit for bit. REQUIRES: it is
  // called between steps.
  std::vector<double> state() const;
  // Returns invalid_argument for a state of another recipe or a damaged one and then changes
  // nothing.
  Status load_state(std::span<const double> state);

  // While it is off, nothing that products tell is counted or remembered: trials are no evidence.
  void count(Fp8Count counting);

  // The products call the following.
  // Returns the scale that earlier steps tell; nothing where a tensor is scaled by its own
  // magnitude.
  std::optional<at::Tensor> earlier_scale(Fp8Side side, std::size_t product, at::Device device);
  void see(Fp8Side side, std::size_t product, const Fp8Seen& seen);

 private:
  AmaxHistory& history(Fp8Side side, std::size_t product);
  void note(Fp8Side side, std::size_t product, const QuantizeCounts& counts);

  const Fp8Recipe recipe_;
  const std::shared_ptr<Fp8Shapes> shapes_;
  mutable std::mutex mutex_;
  Fp8Count counting_ = Fp8Count::on;
  std::vector<AmaxHistory> histories_;  // two a product (Fp8Side), as products come within a call
  std::vector<Fp8Waiting> waiting_;
  Fp8Counts counts_;
};

using Fp8Blocks = std::vector<std::shared_ptr<Fp8Block>>;

// Returns the states of all blocks of one rank as one row, for saves and snapshots: the number of
// blocks, then for each the length of its state and the state. The row is empty where no block
// remembers anything.
std::vector<double> pack_fp8(const Fp8Blocks& blocks);

// Loads a row of pack_fp8(); an empty row makes all blocks forget. Returns invalid_argument for
// other blocks, another recipe or a damaged row, and then changes nothing.
Status unpack_fp8(std::span<const double> row, const Fp8Blocks& blocks);

}  // namespace cox::detail
