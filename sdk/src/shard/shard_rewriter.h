// ShardRewriter replaces the arguments of a loop's operators. So each rank of a node writes only
// its own slices of shared memory, and computes only its own elements of the optimizer's state.
//
//   the operator                       runs on
//   writes a parameter, elementwise    this rank's slices of all operands
//   writes a parameter in another way  a private copy, of which the rank keeps its own slice
//   has shards among its arguments     slices if it is elementwise, else gathered tensors
//   only reads parameters              the same arguments, after the other ranks' writes
//
// Writes to parameters have numbers (write_order.h), so all ranks must make the same ones. Owned by
// Sharding and called by the operator stream. Training thread only; waits for other ranks. Throws
// cox::Error if ranks diverge, or if an operator cannot be rewritten.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/transport/shared/segment.h"
#include "sdk/src/shard/operands.h"
#include "sdk/src/shard/sharded_parameters.h"
#include "sdk/src/shard/tracked_states.h"
#include "sdk/src/shard/write_order.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/pointer_map.h"

namespace cox::detail {

class ShardRewriter final : public OperatorRewriter {
 public:
  // The size of the memory through which shards are gathered, part by part.
  static constexpr std::size_t kGatheringBytes = std::size_t{1} << 20;

  // REQUIRES: `parameters` and `order` outlive the rewriter.
  ShardRewriter(const ShardedParameters& parameters, WriteOrder& order)
      : parameters_(parameters), order_(order), states_(parameters) {}

  // Sets the memory through which shards are gathered: kGatheringBytes, shared by all ranks.
  // REQUIRES: called before the first operator.
  void gather_in(transport::SharedSegment memory) { gathering_ = std::move(memory); }

  void touch(const at::Tensor& argument) override;
  bool wants(const c10::OperatorHandle& handle, const OperatorFacts& facts) override;
  void call(const c10::OperatorHandle& handle, const OperatorFacts& facts,
            torch::jit::Stack& stack) override;

  // Reports that .grad holds the averages of all ranks, so an update may follow.
  void gradients_averaged();
  // Waits until the other ranks have completed their writes. Call it before parameters are read
  // past the stream: by a backward pass, by a hash of weights.
  void before_reading() { order_.wait_for_completed(); }

  // Returns the whole of a shard on ranks that keep it, and an undefined tensor on others. Returns
  // any other tensor as it is. Collective for shards.
  enum class Keep { yes, no };
  at::Tensor whole(const at::Tensor& tensor, Keep keep);
  // Returns the parameter to whose state the shard belongs; null if `tensor` is no shard.
  const ShardedParameter* sharded_by(const at::Tensor& tensor);
  // Writes this rank's elements of a parameter. `own` is 1-D, in memory order. Collective: every
  // rank writes its elements.
  void write(std::size_t parameter, const at::Tensor& own);
  // Copies `values`, which the program put into other memory, to the parameter's place in the
  // node's memory. `values` has the parameter's layout. The version counter stays, because graphs
  // may have saved the values. Collective. Throws cox::Error if ranks have different values.
  void take(std::size_t parameter, const at::Tensor& values);
  // Makes a shard of an optimizer's state of the parameter. Does nothing if the layouts differ.
  void divide(const at::Tensor& state, std::size_t parameter) { states_.divide(state, parameter); }

  // Returns the number of updates that wrote in an order that had not occurred before.
  std::uint64_t new_sequences() const { return sequences_.new_sequences(); }
  // Returns the number of tensors that became shards so far.
  std::uint64_t shards_made() const { return states_.shards_made(); }

 private:
  enum class Seen : std::uint8_t {
    parameter = 1,
    shard = 2,
    flowing = 4,  // gradients, and tensors computed from gradients
    candidate = 8,
    copy = 16,
  };
  bool has_seen(Seen kind) const { return (seen_ & static_cast<std::uint8_t>(kind)) != 0; }
  static Seen seen_as(TrackedStates::Kind kind);
  void see(Seen kind) { seen_ |= static_cast<std::uint8_t>(kind); }
  bool follows_values() const;

  void classify(Operand& operand);
  Operands operands_of(const OperatorFacts& facts, std::span<const c10::IValue> arguments);
  bool is_rewritable(const Operands& operands) const;
  void make_shards(const Operands& operands);
  bool can_be_narrowed(const OperatorTraits& traits, const Operands& operands) const;
  void run_narrowed(const c10::OperatorHandle& handle, const Operands& operands,
                    torch::jit::Stack& stack);
  void note_shards(const c10::OperatorHandle& handle, const Operands& operands,
                   const ChangedOperands& changed, std::span<const c10::IValue> results);
  void run_on_copy(const c10::OperatorHandle& handle, const Operands& operands,
                   torch::jit::Stack& stack);
  void run_whole(const c10::OperatorHandle& handle, const Operands& operands,
                 torch::jit::Stack& stack);
  void note_results(const OperatorTraits& traits, const Operands& operands,
                    std::span<const c10::IValue> results);
  at::Tensor narrow(const at::Tensor& tensor, std::size_t parameter);
  at::Tensor gather(const at::Tensor& shard, std::size_t parameter, Keep keep = Keep::yes);
  void gather_part(const at::Tensor& shard, std::size_t parameter, const ElementRange& part);
  void run_numbered(const c10::OperatorHandle& handle, const Operands& operands,
                    const std::function<void()>& run);
  void gather_shards(const c10::OperatorHandle& handle, Operands& operands,
                     torch::jit::Stack& stack);
  void write_own(const ShardedParameter& of, const at::Tensor& own);
  void arrive(std::uint64_t what, const std::function<std::string()>& tell);

  const ShardedParameters& parameters_;
  WriteOrder& order_;
  TrackedStates states_;
  UpdateSequences sequences_;
  transport::SharedSegment gathering_;
  PointerMap<std::uint32_t> gradients_;  // by address of the data: parameter's index + 1
  bool has_averaged_ = false;
  std::uint8_t seen_ = 0;  // kinds among the next operator's arguments
};

}  // namespace cox::detail
