// ShardRewriter gives operators of a loop other arguments, so that each rank of a node writes its
// own slices of what all of them hold once, and computes its own elements of the optimizer's state.
//
//   writes a parameter, elementwise    -> on this rank's slice, and so are its operands
//   writes it in another way           -> on a private copy, of which the own slice is kept
//   has shards among its arguments     -> on slices where it is elementwise, else on gathered ones
//   only reads parameters              -> as it is, once the other ranks have completed their
//   writes
//
// A write to a parameter is numbered (write_order.h): all ranks make the same ones. Gradients are
// each rank's own. Owned by Sharding; a rewriter of the operator stream. Training thread only;
// waits for other ranks; throws cox::Error where ranks part, and for what cannot be rewritten.
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
  // Shards are gathered through memory of this size, one part after another.
  static constexpr std::size_t kGatheringBytes = std::size_t{1} << 20;

  // `parameters` and `order` must outlive this.
  ShardRewriter(const ShardedParameters& parameters, WriteOrder& order)
      : parameters_(parameters), order_(order), states_(parameters) {}

  // Sets the memory of all ranks where shards are gathered, kGatheringBytes. Called before the
  // first operator.
  void gather_in(transport::SharedSegment memory) { gathering_ = std::move(memory); }

  void touch(const at::Tensor& argument) override;
  bool wants(const c10::OperatorHandle& handle, const OperatorFacts& facts) override;
  void call(const c10::OperatorHandle& handle, const OperatorFacts& facts,
            torch::jit::Stack& stack) override;

  // Gradients are the averages of all ranks; an update may follow.
  void gradients_averaged();
  // Somebody is about to read parameters past the stream: a backward pass, a hash of weights.
  void before_reading() { order_.wait_for_completed(); }

  // Returns the whole of a shard on ranks that keep it, an undefined tensor on others; other
  // tensors as they are. Collective.
  enum class Keep { yes, no };
  at::Tensor whole(const at::Tensor& tensor, Keep keep);
  // Returns the parameter that the tensor is a shard of a state of, or null.
  const ShardedParameter* sharded_by(const at::Tensor& tensor);
  // Writes this rank's elements of a parameter, 1-D, as they lie; all ranks together theirs.
  // Collective.
  void write(std::size_t parameter, const at::Tensor& own);
  // Writes a parameter whose values, in its layout, the program has in other memory. Graphs may
  // have saved them, so it counts as unchanged. Collective. Throws cox::Error where the values
  // differ between ranks.
  void take(std::size_t parameter, const at::Tensor& values);
  // Makes a shard of an optimizer's state of the parameter, where it has the parameter's layout.
  void divide(const at::Tensor& state, std::size_t parameter) { states_.divide(state, parameter); }

  // Returns how many updates wrote in an order that had not occurred before.
  std::uint64_t new_sequences() const { return sequences_.departures(); }
  // Returns how many tensors of the program became shards.
  std::uint64_t shards_made() const { return states_.shards_made(); }

 private:
  enum class Seen : std::uint8_t {
    parameter = 1,
    shard = 2,
    flowing = 4,  // gradients, and what was computed from them
    candidate = 8,
  };
  bool has_seen(Seen kind) const { return (seen_ & static_cast<std::uint8_t>(kind)) != 0; }
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
  PointerMap<std::uint32_t> gradients_;  // by where their data begin: parameter's index + 1
  bool has_averaged_ = false;
  std::uint8_t seen_ = 0;  // kinds among the arguments of the operator that is about to run
};

}  // namespace cox::detail
