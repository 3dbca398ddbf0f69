// Fp8Block: what one block keeps from step to step to run its linear products in FP8: the recipe,
// largest magnitudes and margins of delayed scaling by the order of products within a call, the
// quantised weights, counts. Shared by the block's calls, their graphs and whoever reports; all
// methods are thread-safe (backward may run on a thread of autograd's).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/precision/fp8_history.h"
#include "sdk/src/precision/fp8_product.h"
#include "sdk/src/precision/fp8_recipe.h"
#include "sdk/src/precision/fp8_weights.h"

namespace cox::detail {

enum class Fp8Side : std::uint8_t { activation, gradient };
enum class Fp8Count : std::uint8_t { on, off };  // off: it runs again, or evaluates

class Fp8Block {
 public:
  // Products beyond share what the last one has.
  static constexpr std::size_t kMostProducts = 1024;

  // `shapes`: of the device that the block runs on, where that has FP8 hardware.
  explicit Fp8Block(Fp8Recipe recipe, std::shared_ptr<Fp8Shapes> shapes = nullptr);

  const Fp8Recipe& recipe() const { return recipe_; }
  Fp8Means means() const { return shapes_ ? Fp8Means::hardware : Fp8Means::emulation; }
  // Whether a product of that shape is worth it; always where FP8 is only imitated.
  bool takes(const ProductShape& shape);

  // What was counted since the last take. Reads the device once if there is anything on it.
  Fp8Counts take_counts();
  // The optimizer has stepped: histories move on, weights are quantised anew.
  void end_step();
  // It has not, and what was seen since its last step counts for nothing: a step that was skipped,
  // whose magnitudes must not scale those after it, or a trial.
  void drop_step();

  // Whether delayed scaling has seen anything.
  bool remembers() const;
  void forget();  // as if it had not
  // Histories and margins at the end of a step, so that delayed scaling goes on bit for bit.
  // load_state: invalid_argument if they are of another recipe or damaged; then nothing changes.
  std::vector<double> state() const;
  Status load_state(std::span<const double> state);

  // For the products.
  at::Tensor scale_for(Fp8Side side, std::size_t product, const at::Tensor& values);
  void see(Fp8Side side, std::size_t product, const Fp8Seen& seen);
  Fp8Operand weight(const at::Tensor& weight);

 private:
  struct Product {
    AmaxHistory activation;
    AmaxHistory gradient;
    AmaxHistory& of(Fp8Side side) { return side == Fp8Side::activation ? activation : gradient; }
  };
  struct Waiting {  // for a read of the device
    Fp8Side side;
    std::size_t product;
    Fp8Seen seen;
  };
  Product& product(std::size_t index);
  void read_waiting();
  void add(Fp8Side side, std::size_t product, const QuantizeCounts& counts);

  const Fp8Recipe recipe_;
  const std::shared_ptr<Fp8Shapes> shapes_;
  mutable std::mutex mutex_;
  std::vector<Product> products_;
  std::vector<Waiting> waiting_;
  Fp8Weights weights_;
  Fp8Counts counts_;
};

}  // namespace cox::detail
