// TrackedStates finds an optimizer's states by the flow of values. A tensor made alike a parameter
// or gradient (zeros_like, clone) is a candidate. A candidate becomes a state when values that were
// computed elementwise from it are written to the parameter. The state then becomes a shard: a 1-D
// tensor of this rank's own elements.
//
// A candidate whose values never reach the parameter (a log of gradients, an average of weights)
// stays as the program made it. Owned by a ShardRewriter; training thread only; does not
// communicate.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sdk/src/shard/sharded_parameters.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// WeakStorages maps storages to values. An entry ends with its storage and keeps none of its bytes
// alive. A weak pointer keeps the address of the storage taken, so no new storage finds the entry
// of a dead one.
template <class Value>
class WeakStorages {
 public:
  bool is_empty() const { return noted_.empty(); }
  // Returns the value of the tensor's storage, or null. The pointer is valid while the storage
  // lives.
  Value* find(const at::Tensor& tensor) {
    if (noted_.empty()) return nullptr;
    const auto found = noted_.find(storage_impl(tensor));
    return found == noted_.end() ? nullptr : &found->second.value;
  }
  // Sets the value of the tensor's storage. REQUIRES: the tensor has a storage.
  Value& note(const at::Tensor& tensor, Value value) {
    if (noted_.size() >= next_sweep_) sweep();
    Noted noted{tensor.storage().getWeakStorageImpl(), std::move(value)};
    return noted_.insert_or_assign(storage_impl(tensor), std::move(noted)).first->second.value;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Noted {
    Weak storage;
    Value value;
  };

  void sweep() {
    std::erase_if(noted_, [](const auto& each) { return each.second.storage.expired(); });
    next_sweep_ = 2 * noted_.size() + 1024;
  }

  std::unordered_map<const c10::StorageImpl*, Noted> noted_;
  std::size_t next_sweep_ = 1024;
};

class TrackedStates {
 public:
  enum class Kind : std::uint8_t {
    candidate,  // made alike a parameter; may be a state
    derived,    // computed from a gradient, candidates, or both
    shard,      // this rank's elements of a tensor of a parameter's size
    copy,       // a gathered shard, of which the program may hold a view
  };
  struct Tracked {
    Kind kind;
    std::size_t parameter;  // index
    // The candidates from which the tensor was computed. A candidate is also its own source.
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> sources = {};
  };

  explicit TrackedStates(const ShardedParameters& parameters) : parameters_(parameters) {}

  bool is_empty() const { return tracked_.is_empty(); }
  // Returns the tensor's entry, or null.
  Tracked* find(const at::Tensor& tensor) { return tracked_.find(tensor); }

  // Records a tensor that was made alike the parameter, its gradient, or a derived tensor.
  void note_candidate(const at::Tensor& made, std::size_t parameter);
  // Records a result that was computed elementwise from `operands`: gradients of the parameter, or
  // tracked tensors.
  void note_derived(const at::Tensor& result, std::size_t parameter,
                    std::span<const at::Tensor> operands);
  // Records a result of an operator on shards as a shard.
  void note_shard(const at::Tensor& result, std::size_t parameter);
  // Records the gathered whole of a shard. A write to a view of it would be lost.
  void note_copy(const at::Tensor& whole, std::size_t parameter);
  // Reports that `operand` is about to be written to the parameter, or to a shard of its states.
  // Makes shards of the operand's candidates.
  void flows_into(const at::Tensor& operand, std::size_t parameter);

  // Makes a shard of a known state of the parameter. Does nothing if the layouts differ.
  void divide(const at::Tensor& state, std::size_t parameter);

  std::uint64_t shards_made() const { return shards_made_; }

 private:
  void add_sources(const at::Tensor& operand, Tracked& to);
  void make_shard(const at::Tensor& candidate, std::size_t parameter);

  const ShardedParameters& parameters_;
  WeakStorages<Tracked> tracked_;
  std::uint64_t shards_made_ = 0;
};

}  // namespace cox::detail
