// Sharding lets the ranks of a node hold the parameters of adopted models and their averaged
// gradients once, and divide the optimizer's state among them (shard.mode=state), without a change
// to the loop. It owns what that takes: the memory of the node, the order of writes, and the
// rewriter of the operator stream.
//
//   adopt() -> add(): parameters move | backward -> average -> gradients_averaged()
//   update -> rewriter(): writes on slices | whoever reads past the stream -> before_reading()
//
// Owned by Adoption, or by a Reducer; training thread only. Waits by polling, books the time as
// waiting, and throws cox::Error where another rank has left. docs/sharding.md.
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

// HeldTensor is a copy of what this rank holds of a tensor of a model or optimizer.
struct HeldTensor {
  NamedTensor copy;
  // The parameter whose elements of this rank the copy has, 1-D, as they lie; empty: the copy is
  // whole.
  std::optional<std::size_t> part_of;
};

// SavedShards joins shards for a save, divides states after a resume, and copies what a rank holds
// for a rollback. A view of a Sharding, which outlives it; training thread.
class SavedShards {
 public:
  SavedShards(const ShardedParameters& parameters, ShardRewriter& rewriter)
      : parameters_(parameters), rewriter_(rewriter) {}

  // Returns a stand-in with the sizes and type that a save holds of an optimizer's state: for a
  // shard those of its parameter, without values. Local.
  at::Tensor form_of_whole(const at::Tensor& state) const;
  // Sets the tensors of `saved` to what a save holds of an optimizer's `states`, in the same order:
  // the whole of a shard on ranks that `keeps` it, an undefined tensor on others. Collective.
  void complete(std::span<const NamedTensor> states, std::span<NamedTensor> saved,
                const std::function<bool(std::size_t place)>& keeps) const;

  // Gives a parameter other values, equal on all ranks. Collective. REQUIRES: the ranks hold it
  // once.
  void load(const at::Tensor& parameter, const at::Tensor& values) const;
  // Divides those of an optimizer's states, called "exp_avg.NAME", whose parameters the ranks hold
  // once. They were loaded whole. Local.
  void divide(std::span<const NamedTensor> states, std::span<const NamedTensor> model) const;

  // Returns the bytes that this rank holds of a state with the layout of the parameters, which has
  // `bytes` when it is whole. Local.
  std::int64_t held_bytes_of(std::int64_t bytes, const std::vector<at::Tensor>& parameters) const;
  // Returns copies of what this rank holds of these. Local.
  std::vector<HeldTensor> copy_held(std::span<const NamedTensor> tensors) const;
  // Gives a model's tensors the values of their copies, in the same order. Collective.
  void put_back(std::span<const NamedTensor> model, std::span<const HeldTensor> copies) const;
  // Returns whole states for divide(), in memory of their own. Elements of other ranks are zeros.
  // Local.
  std::vector<NamedTensor> spread(std::span<const HeldTensor> states) const;

 private:
  const ShardedParameters& parameters_;
  ShardRewriter& rewriter_;
};

class Sharding {
 public:
  // Returns whether the settings ask for it and there are ranks to divide among.
  static bool is_wanted(SessionState& state);
  // `state` outlives this. Collective. Throws cox::Error on all ranks where ranks share no node,
  // train on devices, or get no shared memory.
  explicit Sharding(SessionState& state);

  // Moves parameters, equal on all ranks, to memory of the node; those without a name are called by
  // their index. Collective. Throws cox::Error on all ranks.
  void add(const std::vector<NamedTensor>& parameters);
  SavedShards saves() { return {parameters_, rewriter_}; }
  // Returns whether the ranks hold the tensor once; it is the whole of a parameter then.
  bool has(const at::Tensor& parameter) const { return parameters_.whole(parameter) != nullptr; }
  // Gives all ranks memory of their own again. The optimizer's state stays divided.
  void give_back();

  // Puts the bytes of this rank's part on the status page.
  void show_held() const;

  OperatorRewriter& rewriter() { return rewriter_; }
  void gradients_averaged();
  // Begins a backward pass that accumulates into .grad. Gradients that the program holds become
  // this rank's own. The node's sum gets .grad times `unit`.
  void backward_begins(double unit = 1);
  // Allows gradients to be added to the node's while that pass runs. REQUIRES: no code reads this
  // rank's own gradients behind the pass.
  void add_early() { own_gradients_->add_early(); }
  void backward_ended();
  // Makes the way in which gradients are averaged; those that the node does not hold go by `setup`.
  // `passes`: who tells of backward passes and averages. This outlives the results.
  enum class Passes { told_by_loop, told_by_reduction };
  ReductionMaker maker(const ReductionSetup& setup, Passes passes);
  // Rewrites operators of this thread until give_back(). For loops that do not show rewriter() the
  // operators by themselves.
  void rewrite() { shown_.emplace(std::vector<OperatorListener*>{}, &rewriter_); }
  // Waits until parameters have the values that they have on all ranks.
  void before_reading() { rewriter_.before_reading(); }
  // Moves parameters that the program gave other memory (set_data, a load) to the node's again.
  // Collective. Throws cox::Error where a parameter got another form.
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
  std::optional<StreamScope> shown_;  // by rewrite()
  // When the heap was last trimmed.
  std::uint64_t shards_seen_ = 0;
  std::size_t steady_seen_ = 0;
};

}  // namespace cox::detail
