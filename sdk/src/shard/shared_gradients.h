// Averaged gradients that the ranks of a node hold once. Each rank adds its own gradient to the
// node's, in ascending ranks, a parameter at a time, and lets go of it: while backward() runs, or
// behind it where another rank has to add first. Then each divides its slice, and .grad of all
// ranks is the node's, read-only as parameters are. Sums have the bits of buckets.
//
// Parameters whose gradients the node does not hold (narrow, complex, in another layout, small) go
// another way (gradient_reduction.h). Training thread only; waits for other ranks.
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

// GradientTurns say whose turn it is to add to each gradient, in memory of all ranks of the node.
class GradientTurns {
 public:
  static std::size_t bytes_needed(std::size_t gradients, std::int32_t ranks);
  // `memory`: zeroed, at least bytes_needed(). `rank`: of the node.
  GradientTurns(transport::SharedSegment memory, std::size_t gradients, std::int32_t rank,
                std::int32_t ranks, WriteOrder::Wait wait);

  std::int32_t rank() const { return rank_; }
  // Says what this rank has of a gradient in the round that begins. REQUIRES: all ranks call it for
  // the same gradients, and meet before they call any_says().
  enum class Has : std::uint64_t { none, one, more_than_was_added };
  void say(std::size_t gradient, Has has);
  // Returns the largest value that a rank has said.
  Has any_says(std::size_t gradient) const;
  // Publishes how many writes this rank had made when its newest backward pass began. From then on
  // the rank reads no earlier average.
  void say_begun(std::uint64_t writes);
  // Returns whether every rank has published at least that number.
  bool have_begun(std::uint64_t writes) const;

  // Returns whether all lower ranks have added theirs.
  bool is_turn(std::size_t gradient) const;
  // Waits until it is this rank's turn; the caller then adds and calls pass().
  void await_turn(std::size_t gradient);
  void pass(std::size_t gradient);
  // Waits until all ranks have added theirs.
  void await_all(std::size_t gradient);

  // Sums a number over all ranks, in ascending ranks. REQUIRES: ranks meet between say_part() and
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
  std::vector<std::uint64_t> rounds_;  // of each gradient, in which somebody had one
};

// OwnGradients adds this rank's own gradients to the node's. A gradient that was complete once in a
// backward pass before is added as soon as it is complete, when lower ranks have added theirs. A
// rank that is ahead waits within the pass, so at most a few MiB of its gradients are queued.
class OwnGradients {
 public:
  // Hooks the parameters. All of it outlives this.
  OwnGradients(const ShardedParameters& parameters, WriteOrder& order, GradientTurns& turns,
               WriteOrder::Wait wait);

  // Begins a backward pass that accumulates into .grad, which is this rank's own until the pass has
  // ended. The node's sum gets .grad times `unit`.
  void backward_begins(double unit);
  // Allows gradients to be added before the pass has ended. REQUIRES: no code reads this rank's own
  // gradients behind the pass.
  void add_early() { is_early_ = true; }
  // Sets .grad of each gradient that was added to the node's tensor, whose values are not averaged
  // yet.
  void backward_ended();

  // Returns whether .grad is the average of an earlier call: of another model that has the
  // parameter as well.
  bool is_averaged(std::size_t gradient) const;
  // Returns what this rank contributes: its gradient still to be added, or added already.
  GradientTurns::Has has(std::size_t gradient) const;
  // Returns how many gradients are added early from now on.
  std::size_t steady() const { return steady_; }
  // Adds what is left of a gradient, in this rank's turn; zeros where it has none. Returns how many
  // values of its own were not finite. REQUIRES: all ranks call it for the same gradients.
  std::int64_t add_rest(std::size_t gradient);

 private:
  struct State {
    bool is_ready = false;     // in this pass
    bool is_steady = false;    // was complete once in a pass
    bool comes_again = false;  // was complete twice
    bool is_added = false;
    bool goes_on = false;  // autograd accumulated into it after it was added
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
  std::vector<State> states_;       // by index of the gradient; those of parameters are unused
  std::vector<std::size_t> queue_;  // complete, in their order
  std::size_t queue_begin_ = 0;     // the first that was not added
  std::size_t queued_bytes_ = 0;    // from there on
  std::uint64_t writes_ = 0;        // when the pass began
  std::size_t steady_ = 0;
  double unit_ = 1;
  bool is_in_pass_ = false;
  bool is_early_ = false;
  std::optional<ReadyHooks> hooks_;
};

// SharedGradients are the parts that a SharedReduction works on; all outlive it. The functions are
// empty for adopted loops, which report their backward passes to Sharding. For other loops the
// reduction's begin() calls backward_begins and its hand_back() calls averaged.
struct SharedGradients {
  const ShardedParameters& parameters;
  WriteOrder& order;
  GradientTurns& turns;
  OwnGradients& own;
  transport::Communicator& ranks;
  std::function<void(double unit)> backward_begins = {};
  std::function<void()> averaged = {};  // .grad are averages
};

// Averages the gradients that the node holds, and the others by `rest`, which may be null where
// there are none. `parameters`: of the set; must outlive the result. Local.
class SharedReduction final : public GradientReduction {
 public:
  // Makes the way of the others, for parameters that outlive it.
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
    std::size_t parameter;  // in the set
    std::size_t gradient;   // its index among the node's
    bool any = false;       // some rank has one in this round
  };
  void arrive();
  void add_all();
  [[noreturn]] void refuse(const Member& member) const;

  const SharedGradients shared_;
  const std::vector<at::Tensor>& parameters_;
  std::vector<Member> members_;
  std::vector<std::size_t> others_;  // of the set, that go another way
  std::vector<at::Tensor> rest_parameters_;
  std::vector<bool> rest_needed_;
  GradientHabits rest_habits_;
  std::unique_ptr<GradientReduction> rest_;
  std::vector<std::int64_t> nonfinite_;
};

}  // namespace cox::detail
