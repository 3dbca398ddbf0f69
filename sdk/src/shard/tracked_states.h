// TrackedStates finds the states of optimizers by how values flow. A tensor that is made alike a
// parameter or gradient (zeros_like, clone) may be a state. When values that were computed from it
// elementwise are written to that parameter, it is one, and from then on this rank keeps its own
// elements of it only: its tensor becomes a shard, 1-D. A tensor that never flows into its
// parameter (a log of gradients, an average of weights) stays as the program made it.
//
// Owned by a ShardRewriter; training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sdk/src/shard/sharded_parameters.h"
#include "sdk/src/shard/weak_storages.h"

namespace cox::detail {

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

  std::uint64_t shards_made() const { return shards_made_; }

 private:
  void add_sources(const at::Tensor& operand, Tracked& to);
  void make_shard(const at::Tensor& candidate, std::size_t parameter);

  const ShardedParameters& parameters_;
  WeakStorages<Tracked> tracked_;
  std::uint64_t shards_made_ = 0;
};

}  // namespace cox::detail
