// ShardedParameters are the parameters of models that the ranks of a node hold once, and their
// averaged gradients. Storages of parameters keep their objects and get the node's memory,
// read-only: tensors, views and aliases of the program see the same values as before, and each
// other's changes. This rank's slice of each is writable through a tensor of its own. Owned by
// Sharding; training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/shard/node_copy.h"
#include "sdk/src/stream/pointer_map.h"

namespace cox::detail {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// One storage in the node's memory; several parameters may be views of it.
struct ShardedStorage {
  c10::Storage storage;
  NodeCopy copy;
  std::int64_t offset_bytes = 0;  // in the copy
  std::int64_t element_bytes = 0;
  ElementRange own;                          // this rank's elements
  std::vector<std::size_t> parameters = {};  // that lie in it

  const std::byte* readable() const { return copy.readable() + offset_bytes; }
  std::byte* writable() const { return copy.writable() + offset_bytes; }
  std::int64_t own_begin_bytes() const { return own.begin * element_bytes; }
  std::int64_t own_bytes() const { return own.size() * element_bytes; }
};

// The form that a parameter had when it went to the node's memory.
struct MovedForm {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  at::ScalarType type = at::kFloat;
  friend bool operator==(const MovedForm&, const MovedForm&) = default;
};
MovedForm form_of(const at::Tensor& tensor);

struct ShardedParameter {
  std::string name;
  at::Tensor tensor;
  std::size_t storage = 0;
  ElementRange own;  // this rank's elements, counted from the parameter's first, as they lie
  at::Tensor slice;  // these elements: 1-D, writable
  MovedForm form = {};
  // Index of the parameter's averaged gradient, where the node holds it.
  std::optional<std::size_t> gradient = {};
  // Index of the parameter, where this is a gradient.
  std::optional<std::size_t> gradient_of = {};

  // Returns whether the other tensor of its storage is the whole parameter, as that is.
  bool is_seen_whole_by(const at::Tensor& other) const;
  // Returns whether the other tensor has the parameter's sizes, and its elements in the same order.
  bool has_layout_of(const at::Tensor& other) const;
};

class ShardedParameters {
 public:
  // Smaller tensors stay each rank's own: to agree on a write costs more than it saves.
  static constexpr std::int64_t kLeastElements = 64;

  // `grain`: of slices (divide_storages).
  explicit ShardedParameters(std::int64_t grain) : grain_(grain) {}

  // Moves the parameters of a model to memory of the node, in proportion to `weights`, one a rank
  // of `node`. All ranks have the same values. Collective. Returns, on all ranks, invalid_argument
  // for tensors that cannot be divided (not dense, not on the CPU) and resource_exhausted where
  // there is no memory; nothing has changed then.
  Status add(transport::Communicator& node, const std::vector<NamedParameter>& parameters,
             const std::vector<double>& weights);
  // Gives every storage memory of this rank's own again, with the values of now.
  void give_back();
  // Copies gradients that the program still holds, as .grad or elsewhere, to memory of this rank's
  // own, before the node's memory gets other values.
  void let_go_of_gradients();

  // Returns parameters and gradients; their indices stay.
  const std::vector<ShardedParameter>& all() const { return parameters_; }
  // Returns the index of the parameter itself, for a gradient's.
  std::size_t owner(std::size_t index) const {
    return parameters_[index].gradient_of.value_or(index);
  }
  // Returns the index of the parameter's gradient, where the node holds it.
  std::optional<std::size_t> gradient_of(const at::Tensor& parameter) const;
  // Returns all elements of a gradient: 1-D, writable. REQUIRES: ranks take turns.
  at::Tensor writable_gradient(std::size_t index) const;
  const std::vector<ShardedStorage>& storages() const { return storages_; }
  // Returns the storage that the tensor lies in, null where that is none of these.
  const ShardedStorage* storage_of(const at::Tensor& tensor) const;
  // Returns the parameter that the tensor is the whole of, or null.
  const ShardedParameter* whole(const at::Tensor& tensor) const;
  std::size_t index_of(const ShardedParameter& parameter) const {
    return static_cast<std::size_t>(&parameter - parameters_.data());
  }
  // Returns the first parameter whose memory the program replaced (set_data, to, load), or null.
  const ShardedParameter* replaced() const;
  // Returns whether a replaced parameter can go to its place in the node's memory again.
  bool fits_again(std::size_t index) const;
  // Moves a replaced parameter, whose values `write` puts to the node's memory. Aliases of its
  // former memory keep their values, in memory of this rank's own. REQUIRES: fits_again().
  void move_again(std::size_t index, const std::function<void(const at::Tensor& values)>& write);

 private:
  struct Move;
  Status move(transport::Communicator& node, const Move& move, const std::vector<double>& weights);
  Move collect(const std::vector<NamedParameter>& parameters) const;
  static Status check(const Move& move);
  static Result<std::vector<ShardedStorage>> fill(const Move& move, NodeCopy copy,
                                                  const SliceLayout& layout, std::size_t rank);
  void attach(const Move& move, std::vector<ShardedStorage> filled);
  static std::int64_t gradient_bytes(const Move& move);
  void attach_gradients(const Move& move, const NodeCopy& copy);
  void note_storages();

  const std::int64_t grain_;
  std::vector<ShardedStorage> storages_;
  std::vector<ShardedParameter> parameters_;
  PointerMap<std::uint32_t> by_storage_;  // index + 1
};

// Returns a 1-D tensor of elements of a dense tensor, as they lie in memory. It shares the memory.
at::Tensor elements_of(const at::Tensor& dense, const ElementRange& range);

}  // namespace cox::detail
