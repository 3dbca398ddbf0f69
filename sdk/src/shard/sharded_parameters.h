// ShardedParameters keeps the parameters of models, and their averaged gradients, once for the
// ranks of a node. A parameter's storage object stays and its memory becomes the node's, read-only.
// So tensors, views and aliases of the program see the same values as before, and each other's
// changes. A second tensor makes this rank's slice of each parameter writable. Owned by Sharding;
// training thread only.
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

// ShardedStorage is one storage in the node's memory. Several parameters may be views of one
// storage.
struct ShardedStorage {
  c10::Storage storage;
  NodeCopy copy;
  std::int64_t offset_bytes = 0;  // from the start of the copy
  std::int64_t element_bytes = 0;
  ElementRange own;                          // this rank's elements
  std::vector<std::size_t> parameters = {};  // indices of the parameters in the storage

  const std::byte* readable() const { return copy.readable() + offset_bytes; }
  std::byte* writable() const { return copy.writable() + offset_bytes; }
  std::int64_t own_begin_bytes() const { return own.begin * element_bytes; }
  std::int64_t own_bytes() const { return own.size() * element_bytes; }
};

// MovedForm is a parameter's form at its move to the node's memory.
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
  ElementRange own;  // this rank's elements in memory order; 0 is the parameter's first
  at::Tensor slice;  // the elements of `own`: 1-D, writable
  MovedForm form = {};
  // For a parameter: index of its averaged gradient, if the node holds the gradient.
  std::optional<std::size_t> gradient = {};
  // For a gradient: index of its parameter.
  std::optional<std::size_t> gradient_of = {};

  // Returns whether `other`, a tensor of the same storage, is the whole parameter.
  bool is_seen_whole_by(const at::Tensor& other) const;
  // Returns whether `other` has the parameter's sizes and order of elements in memory.
  bool has_layout_of(const at::Tensor& other) const;
};

class ShardedParameters {
 public:
  // Smaller tensors stay in each rank's own memory, because agreeing on a write costs more than
  // sharing saves.
  static constexpr std::int64_t kLeastElements = 64;

  // `grain` is the unit of slice borders, in elements (divide_storages()).
  explicit ShardedParameters(std::int64_t grain) : grain_(grain) {}

  // Moves the parameters of a model to the node's memory, divided in proportion to `weights`, one
  // per rank of `node`. Collective. Returns the same status on all ranks: invalid_argument for
  // tensors that cannot be divided (not dense, not on the CPU), resource_exhausted without memory.
  // After an error no parameter has moved; but if only the frozen ones get no memory, the trained
  // ones have. REQUIRES: all ranks have the same values.
  Status add(transport::Communicator& node, const std::vector<NamedParameter>& parameters,
             const std::vector<double>& weights);
  // Gives every storage memory of this rank's own, with the present values. Forgets all parameters.
  void give_back();
  // Moves the gradients that the program still holds, as .grad or elsewhere, to memory of this
  // rank's own. Call it before the node's memory gets other values.
  void let_go_of_gradients();

  // Returns parameters and gradients. An index never changes.
  const std::vector<ShardedParameter>& all() const { return parameters_; }
  // Returns the parameter's index for a gradient, and `index` for a parameter.
  std::size_t owner(std::size_t index) const {
    return parameters_[index].gradient_of.value_or(index);
  }
  // Returns the index of the parameter's gradient, if the node holds the gradient.
  std::optional<std::size_t> gradient_of(const at::Tensor& parameter) const;
  // Returns all elements of a gradient: 1-D, writable. REQUIRES: only one rank writes at a time.
  at::Tensor writable_gradient(std::size_t index) const;
  const std::vector<ShardedStorage>& storages() const { return storages_; }
  // Returns the storage in which the tensor lies; null if the node does not hold it.
  const ShardedStorage* storage_of(const at::Tensor& tensor) const;
  // Returns the parameter or gradient that `tensor` shows as a whole, or null.
  const ShardedParameter* whole(const at::Tensor& tensor) const;
  std::size_t index_of(const ShardedParameter& parameter) const {
    return static_cast<std::size_t>(&parameter - parameters_.data());
  }
  // Returns the first parameter whose memory the program replaced (set_data, to, load), or null.
  const ShardedParameter* replaced() const;
  // Returns whether a replaced parameter can move to its place in the node's memory again.
  bool fits_again(std::size_t index) const;
  // Moves a replaced parameter to its place in the node's memory. `write` must write the values
  // there. Aliases of the former memory keep their values, in memory of this rank's own. REQUIRES:
  // fits_again().
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
  PointerMap<std::uint32_t> by_storage_;  // by storage: index + 1
};

// Returns a 1-D tensor of a range of a dense tensor's elements, in memory order. The result shares
// the memory.
at::Tensor elements_of(const at::Tensor& dense, const ElementRange& range);

}  // namespace cox::detail
