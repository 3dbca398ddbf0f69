// BitsComparison compares what backward gets for tensors that were dropped or moved with the
// tensors themselves, bit for bit, and names the regions where they differ.
//
//   autograd saves -> [hooks: hash] -> dropped or moved -> made again -> [hooks: compare]
//
// A comparison costs two hashes of what is dropped, and on a device one wait when the regions are
// read. Only dense tensors are compared. The training thread calls everything. The hooks on saved
// tensors share the comparison, and compare on whatever thread runs backward.
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
  // Called between steps.
  void compare(Comparing comparing) { is_on_ = comparing == Comparing::on; }
  bool is_on() const { return is_on_; }

  // Makes the hooks of one tensor that is saved in `region`. The hooks compare what the hooks of
  // `deciding` return with what they got. REQUIRES: `deciding` is not null.
  static std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks(
      std::shared_ptr<BitsComparison> comparison, BlockId region,
      std::unique_ptr<torch::autograd::SavedVariableHooks> deciding);

  // The operator that saved tensors has ended, and has failed.
  void operator_ended() {
    if (!dropped_.empty()) hash_dropped();
  }
  void operator_failed() noexcept { dropped_.clear(); }
  // Returns the regions where backward got other bits since the last call. Waits for a device whose
  // tensors were compared.
  std::vector<BlockId> take_unequal();

 private:
  class Hooks;
  // A tensor that is not kept: its hash, once the operator that saves it has ended; of one on a
  // device, where the hash is.
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
  std::vector<std::shared_ptr<Bits>> dropped_;  // by the operator that runs

  std::mutex mutex_;                           // guards the following
  std::vector<BlockId> unequal_;               // that take_unequal() has not returned
  std::vector<DeviceComparison> comparisons_;  // that nobody has read yet
};

}  // namespace cox::detail
