// Sharding lets the ranks of a node hold parameters and averaged gradients once, and divide the
// optimizer's state (shard.mode=state), without a change to the loop. Owns the node's memory, the
// order of writes, and the rewriter of the operator stream.
//
//   adopt() -> add(): parameters move | backward -> average -> gradients_averaged()
//   update -> rewriter(): writes on slices | code that reads past the stream -> before_reading()
//
// Owned by Adoption, or by a Reducer. Training thread only. Waits by polling, counts the time as
// waiting, and throws cox::Error if another rank has left. Explained in docs/sharding.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/transport/communicator.h"
#include "coxswain/named_tensor.h"
#include "coxswain/session.h"
#include "metrics/topics/parallel.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/shard/fault_names.h"
#include "sdk/src/shard/shard_rewriter.h"
#include "sdk/src/shard/sharded_parameters.h"
#include "sdk/src/shard/shared_gradients.h"
#include "sdk/src/shard/write_order.h"

namespace cox::detail {

// HeldTensor is a copy of this rank's part of a tensor of a model or optimizer.
struct HeldTensor {
  NamedTensor copy;
  // Index of the parameter whose elements of this rank the copy holds, 1-D, in memory order. Empty
  // if the copy is whole.
  std::optional<std::size_t> part_of;
};

// SavedShards joins shards for a save, divides states after a resume, and copies this rank's part
// for a rollback. A view of a Sharding, which must outlive the view. Training thread only.
class SavedShards {
 public:
  SavedShards(const ShardedParameters& parameters, ShardRewriter& rewriter)
      : parameters_(parameters), rewriter_(rewriter) {}

  bool is_shard(const at::Tensor& tensor) const { return rewriter_.sharded_by(tensor) != nullptr; }
  // Returns a tensor without values that has the sizes and type of the state in a save. For a shard
  // these are the parameter's sizes. Local.
  at::Tensor form_of_whole(const at::Tensor& state) const;
  // Sets the tensors of `saved` from an optimizer's `states`, in the same order. A shard becomes a
  // whole tensor on ranks where `keeps(place)` is true, and an undefined tensor on the others.
  // Collective.
  void complete(std::span<const NamedTensor> states, std::span<NamedTensor> saved,
                const std::function<bool(std::size_t place)>& keeps) const;

  // Sets a parameter's values. Collective. REQUIRES: the node holds the parameter (has()), and
  // `values` are equal on all ranks.
  void load(const at::Tensor& parameter, const at::Tensor& values) const;
  // Divides an optimizer's states that were loaded whole. A state is named "exp_avg.NAME", after
  // the parameter NAME of `model`. States of parameters that the node does not hold stay whole.
  // Local.
  void divide(std::span<const NamedTensor> states, std::span<const NamedTensor> model) const;

  // Returns this rank's bytes of a state that has the layout of `parameters`, and `bytes` bytes
  // when whole. Local.
  std::int64_t held_bytes_of(std::int64_t bytes, const std::vector<at::Tensor>& parameters) const;
  // Returns copies of this rank's parts of the tensors. Local.
  std::vector<HeldTensor> copy_held(std::span<const NamedTensor> tensors) const;
  // Sets a model's tensors from their copies, in the same order. Collective.
  void put_back(std::span<const NamedTensor> model, std::span<const HeldTensor> copies) const;
  // Returns whole states for divide(), in new memory. The elements of other ranks are zeros. Local.
  std::vector<NamedTensor> spread(std::span<const HeldTensor> states) const;

 private:
  const ShardedParameters& parameters_;
  ShardRewriter& rewriter_;
};

class Sharding {
 public:
  // Returns whether the settings ask for sharding and the job has several ranks.
  static bool is_wanted(SessionState& state);
  // Collective. Throws cox::Error on all ranks if they are not on one node, train on devices, get
  // no shared memory, or have a Sharding already. REQUIRES: `state` outlives the object.
  explicit Sharding(SessionState& state);

  // Moves parameters to the node's memory. A parameter without a name is called by its index.
  // Collective. Throws cox::Error on all ranks. REQUIRES: the values are equal on all ranks.
  void add(const std::vector<NamedTensor>& parameters);
  SavedShards saves() { return {parameters_, rewriter_}; }
  // Returns whether the node holds `parameter`, which is then a whole parameter or gradient.
  bool has(const at::Tensor& parameter) const { return parameters_.whole(parameter) != nullptr; }
  // Moves all parameters to memory of this rank's own again. The optimizer's state stays divided.
  void give_back();

  // Shows the bytes of this rank's slices on the status page.
  void show_held() const;

  OperatorRewriter& rewriter() { return rewriter_; }
  void gradients_averaged();
  // Begins a backward pass that accumulates into .grad. Gradients that the program holds move to
  // this rank's own memory. The node's sum gets .grad times `unit`.
  void backward_begins(double unit = 1);
  // Allows gradients to be added to the node's during the pass. REQUIRES: no code reads this rank's
  // own gradients after the pass.
  void add_early() { own_gradients_->add_early(); }
  void backward_ended();
  // Returns a maker of reductions for the node's gradients. Other gradients are averaged as `setup`
  // says. `passes` names the caller of backward_begins(), backward_ended() and
  // gradients_averaged(). REQUIRES: the Sharding outlives the reductions.
  enum class Passes { told_by_loop, told_by_reduction };
  ReductionMaker maker(const ReductionSetup& setup, Passes passes);
  // Rewrites this thread's operators until give_back(). For loops that do not pass rewriter() to a
  // stream themselves.
  void rewrite() { shown_.emplace(std::vector<OperatorListener*>{}, &rewriter_); }
  // Waits until the other ranks have completed their writes, so parameters have their final values.
  void before_reading() { rewriter_.before_reading(); }
  // Moves parameters that the program gave other memory (set_data, a load) to the node's memory
  // again. Collective. Throws cox::Error if a parameter's form has changed.
  void follow_replaced();

 private:
  void wait(const std::function<bool()>& is_over);
  void make_room();
  void name_faults();
  void tell_summary() const;
  void warn_of_uneven(const std::vector<NamedTensor>& parameters) const;
  std::vector<double> weights() const;

  SessionState& state_;
  metrics::SharedUpdates updates_;  // of this rank
  const std::unique_ptr<transport::Communicator> node_;
  ShardedParameters parameters_;
  WriteOrder order_;
  ShardRewriter rewriter_;
  std::optional<GradientTurns> turns_;
  std::optional<OwnGradients> own_gradients_;
  std::optional<FaultNames> faults_;
  std::optional<StreamScope> shown_;  // set by rewrite()
  // Values at the last trim of the heap.
  std::uint64_t shards_seen_ = 0;
  std::size_t steady_seen_ = 0;
};

}  // namespace cox::detail
