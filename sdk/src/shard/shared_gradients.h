// Averages the gradients that the ranks of a node hold once. Each rank adds its own gradient to the
// node's, a parameter at a time and in ascending ranks, and releases its own. A rank adds during
// backward(), or afterwards if a lower rank has still to add. Then each rank divides its slice, and
// .grad of all ranks is the node's memory, read-only as parameters are. Sums have the same bits as
// sums of buckets.
//
// Other parameters (narrow, complex, in another layout, small) are averaged by another
// GradientReduction. Training thread only; waits for other ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/shard/sharded_parameters.h"
#include "sdk/src/shard/write_order.h"

namespace cox::detail {

// GradientTurns gives the ranks turns to add to each gradient. State lies in memory of all ranks.
class GradientTurns {
 public:
  static std::size_t bytes_needed(std::size_t gradients, std::int32_t ranks);
  // `memory` is zeroed, shared by all ranks, and has bytes_needed() bytes or more. `rank` is the
  // rank within the node.
  GradientTurns(transport::SharedSegment memory, std::size_t gradients, std::int32_t rank,
                std::int32_t ranks, WriteOrder::Wait wait);

  std::int32_t rank() const { return rank_; }
  // Publishes this rank's contribution to a gradient in the round that begins. REQUIRES: all ranks
  // call say() for the same gradients, and meet before they call any_says().
  enum class Has : std::uint64_t { none, one, more_than_was_added };
  void say(std::size_t gradient, Has has);
  // Returns the largest value of all ranks.
  Has any_says(std::size_t gradient) const;
  // Publishes the number of this rank's writes at the start of its newest backward pass. From then
  // on the rank reads no earlier average.
  void say_begun(std::uint64_t writes);
  // Returns whether every rank has published at least `writes`.
  bool have_begun(std::uint64_t writes) const;

  // Returns whether all lower ranks have added their gradients.
  bool is_turn(std::size_t gradient) const;
  // Waits for this rank's turn. The caller then adds its gradient and calls pass().
  void await_turn(std::size_t gradient);
  void pass(std::size_t gradient);
  // Waits until all ranks have added their gradients.
  void await_all(std::size_t gradient);

  // Sum a number over all ranks, in ascending ranks. REQUIRES: ranks meet between say_part() and
  // sum_of_parts(), and again before the next say_part().
  void say_part(double part);
  double sum_of_parts() const;

 private:
  struct Line;
  Line& line(std::size_t gradient, std::int32_t rank) const;
  std::uint64_t added(std::size_t gradient) const;
  std::uint64_t own_turn(std::size_t gradient) const;
  void await(std::size_t gradient, std::uint64_t added);

  transport::SharedSegment memory_;
  const std::size_t gradients_;
  const std::int32_t rank_;
  const std::int32_t ranks_;
  const WriteOrder::Wait wait_;
  std::vector<std::uint64_t> rounds_;  // per gradient: rounds in which a rank had one
};

// OwnGradients adds this rank's own gradients to the node's. A gradient is steady if autograd
// completed it exactly once in an earlier backward pass. A steady gradient is added during the
// pass, as soon as it is complete and lower ranks have added theirs. A rank that is ahead waits
// within the pass, so only about 8 MiB of its gradients are queued.
class OwnGradients {
 public:
  // Hooks the parameters. REQUIRES: all arguments outlive the object.
  OwnGradients(const ShardedParameters& parameters, WriteOrder& order, GradientTurns& turns,
               WriteOrder::Wait wait);

  // Begins a backward pass that accumulates into .grad. Until the pass ends, .grad is this rank's
  // own. The node's sum gets .grad times `unit`.
  void backward_begins(double unit);
  // Allows gradients to be added before the pass ends. REQUIRES: no code reads this rank's own
  // gradients after the pass.
  void add_early() { is_early_ = true; }
  // Ends the pass. Sets .grad of each added gradient to the node's tensor, whose values are not
  // averaged yet.
  void backward_ended();

  // Returns whether .grad is already an average. Another model that shares the parameter may have
  // averaged it.
  bool is_averaged(std::size_t gradient) const;
  // Returns this rank's contribution, whether or not it is already added.
  GradientTurns::Has has(std::size_t gradient) const;
  // Returns the number of steady gradients, which later passes add early.
  std::size_t steady() const { return steady_; }
  // Waits for this rank's turn, and adds the gradient if the pass has not. A rank without a
  // gradient adds zeros. Returns the number of non-finite values of this rank's gradient. REQUIRES:
  // all ranks call it for the same gradients.
  std::int64_t add_rest(std::size_t gradient);

 private:
  struct State {
    bool is_ready = false;     // complete in this pass
    bool is_steady = false;    // was complete exactly once in a pass
    bool comes_again = false;  // was complete twice in a pass
    bool is_added = false;
    bool goes_on = false;  // accumulated into after the addition
    std::int64_t nonfinite = 0;
  };
  void ready(std::size_t gradient);
  void add_in_turn();
  bool may_add() const;
  void wait_for_turns();
  std::int64_t add(std::size_t gradient);
  at::Tensor& own(std::size_t gradient) const;

  const ShardedParameters& parameters_;
  WriteOrder& order_;
  GradientTurns& turns_;
  const WriteOrder::Wait wait_;
  std::vector<State> states_;       // by gradient's index; entries of parameters are unused
  std::vector<std::size_t> queue_;  // complete gradients, in the order of completion
  std::size_t queue_begin_ = 0;     // first entry that is not added
  std::size_t queued_bytes_ = 0;    // bytes of the entries from queue_begin_ on
  std::uint64_t writes_ = 0;        // this rank's writes at the start of the pass
  std::size_t steady_ = 0;
  double unit_ = 1;
  bool is_in_pass_ = false;
  bool is_early_ = false;
  std::optional<ReadyHooks> hooks_;
};

// SharedGradients are the parts of a SharedReduction, which they must outlive. The functions are
// empty for adopted loops, which report their backward passes to Sharding. For other loops the
// reduction's begin() calls backward_begins(), and its hand_back() calls averaged().
struct SharedGradients {
  const ShardedParameters& parameters;
  WriteOrder& order;
  GradientTurns& turns;
  OwnGradients& own;
  transport::Communicator& ranks;
  std::function<void(double unit)> backward_begins = {};
  std::function<void()> averaged = {};  // called once .grad holds averages
};

// SharedReduction averages the gradients that the node holds. A reduction made by `make_rest`
// averages the others, if there are any. Construction is local. REQUIRES: `parameters` outlive the
// reduction.
class SharedReduction final : public GradientReduction {
 public:
  // Makes the reduction of the other gradients. `parameters` outlive the result.
  using MakeRest = std::function<std::unique_ptr<GradientReduction>(
      const std::vector<at::Tensor>& parameters, const std::vector<bool>& needed,
      GradientHabits& habits)>;
  SharedReduction(SharedGradients shared, const std::vector<at::Tensor>& parameters,
                  const std::vector<bool>& needed, const MakeRest& make_rest);

  void begin(const MicroBatchFacts& facts) override;
  void end() override;
  void flush() override;
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }
  StepExchange* exchange() override { return rest_ ? rest_->exchange() : nullptr; }
  const char* path() override { return "shared memory"; }

 private:
  struct Member {
    std::size_t parameter;  // index in the set
    std::size_t gradient;   // index among the node's
    bool any = false;       // some rank has a gradient in this round
  };
  void arrive();
  void add_all();
  StepBallot merge_ballots(StepBallot mine, const std::function<void()>& pump);
  [[noreturn]] void refuse(const Member& member) const;

  const SharedGradients shared_;
  const std::vector<at::Tensor>& parameters_;
  std::vector<Member> members_;
  std::vector<std::size_t> others_;  // indices in the set of parameters for rest_
  std::vector<at::Tensor> rest_parameters_;
  std::vector<bool> rest_needed_;
  GradientHabits rest_habits_;
  std::unique_ptr<GradientReduction> rest_;
  std::vector<std::int64_t> nonfinite_;
};

}  // namespace cox::detail
