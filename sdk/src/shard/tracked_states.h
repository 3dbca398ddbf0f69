// TrackedStates finds the states of optimizers by how values flow. A tensor that is made alike a
// parameter or gradient (zeros_like, clone) may be a state. When values that were computed from it
// elementwise are written to that parameter, it is one, and from then on this rank keeps its own
// elements of it only: its tensor becomes a shard, 1-D. A tensor that never flows into its
// parameter (a log of gradients, an average of weights) stays as the program made it.
//
// Owned by a ShardRewriter; training thread only; does not communicate.
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

// WeakStorages notes something of storages for as long as they live. The weak pointers keep no
// bytes alive, only the addresses taken, so that no new storage is taken for a dead one.
template <class Value>
class WeakStorages {
 public:
  bool is_empty() const { return noted_.empty(); }
  // Returns what is noted of the tensor's storage, or null.
  Value* find(const at::Tensor& tensor) {
    if (noted_.empty()) return nullptr;
    const auto found = noted_.find(storage_impl(tensor));
    return found == noted_.end() ? nullptr : &found->second.value;
  }
  // REQUIRES: the tensor has a storage.
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
    candidate,  // made alike a parameter: may be a state
    derived,    // computed from a gradient, candidates, or both
    shard,      // this rank's elements of something of a parameter's size
  };
  struct Tracked {
    Kind kind;
    std::size_t parameter;  // index
    // Candidates that it was computed from, and for a candidate the tensor itself.
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> sources = {};
  };

  explicit TrackedStates(const ShardedParameters& parameters) : parameters_(parameters) {}

  bool is_empty() const { return tracked_.is_empty(); }
  // Returns what is known of the tensor, or null.
  Tracked* find(const at::Tensor& tensor) { return tracked_.find(tensor); }

  // A tensor was made alike the parameter, something of its size, or a derived tensor.
  void note_candidate(const at::Tensor& made, std::size_t parameter);
  // A result was computed elementwise from the operands, which are a gradient of the parameter or
  // tracked.
  void note_derived(const at::Tensor& result, std::size_t parameter,
                    std::span<const at::Tensor> operands);
  // A result of an operator on shards.
  void note_shard(const at::Tensor& result, std::size_t parameter);
  // The operand is about to be written to its parameter, or to a shard of it: makes shards of the
  // candidates that it is or was computed from.
  void flows_into(const at::Tensor& operand, std::size_t parameter);

  // Makes a shard of a tensor that is known to be a state of the parameter, where it has the
  // parameter's layout.
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
