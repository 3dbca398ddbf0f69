// BitsComparison compares remade or returned saved tensors with the originals, bit for bit, and
// names the regions with differences.
//
//   autograd saves -> [hooks: hash] -> dropped or moved -> made again -> [hooks: compare]
//
// A comparison costs two hashes of a dropped tensor, and on a device one wait when the regions are
// read. Only dense tensors are compared. The training thread calls everything. The hooks on saved
// tensors share ownership, and compare on the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/units.h"

namespace cox::detail {

class BitsComparison {
 public:
  enum class Comparing : bool { off, on };
  // Turns comparison on or off. Call it between steps.
  void compare(Comparing comparing) { is_on_ = comparing == Comparing::on; }
  bool is_on() const { return is_on_; }

  // Makes the hooks of one tensor saved in `region`. The hooks compare the result of the hooks
  // `deciding` with the tensor that `deciding` got. REQUIRES: `deciding` is not null.
  static std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks(
      std::shared_ptr<BitsComparison> comparison, BlockId region,
      std::unique_ptr<torch::autograd::SavedVariableHooks> deciding);

  // Called after the operator that saved tensors has ended, or has failed.
  void operator_ended() {
    if (!dropped_.empty()) hash_dropped();
  }
  void operator_failed() noexcept { dropped_.clear(); }
  // Returns the regions in which backward got other bits since the last call. Waits for a device
  // whose tensors were compared.
  std::vector<BlockId> take_unequal();

 private:
  class Hooks;
  // A tensor that is not kept. The hash is computed after the saving operator; for a tensor on a
  // device the hash stays there.
  struct Bits {
    at::Tensor tensor;
    std::optional<std::uint64_t> hash;
    at::Tensor hash_on_device;
  };
  struct DeviceComparison {
    BlockId region;
    at::Tensor differs;  // a bool on the device
  };

  void hash_dropped();
  void compare_bits(BlockId region, const Bits& bits, const at::Tensor& found);
  void note_unequal(BlockId region);
  void read_comparisons();

  bool is_on_ = false;
  std::vector<std::shared_ptr<Bits>> dropped_;  // by the running operator

  std::mutex mutex_;                           // guards the following
  std::vector<BlockId> unequal_;               // not yet returned by take_unequal()
  std::vector<DeviceComparison> comparisons_;  // not yet read
};

}  // namespace cox::detail
