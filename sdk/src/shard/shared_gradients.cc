#include "sdk/src/shard/shared_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <span>
#include <utility>

#include "coordinator/core/hash.h"
#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

// One for each gradient and rank; those of rank 0 count the additions, and behind them lies one a
// rank for parts of sums.
struct alignas(transport::kLine) GradientTurns::Line {
  std::atomic<std::uint64_t> added;
  std::atomic<std::uint64_t> has;
  double part;
};

std::size_t GradientTurns::bytes_needed(std::size_t gradients, std::int32_t ranks) {
  return (gradients + 1) * static_cast<std::size_t>(ranks) * sizeof(Line);
}

GradientTurns::GradientTurns(transport::SharedSegment memory, std::size_t gradients,
                             std::int32_t rank, std::int32_t ranks, WriteOrder::Wait wait)
    : memory_(std::move(memory)),
      gradients_(gradients),
      rank_(rank),
      ranks_(ranks),
      wait_(std::move(wait)),
      rounds_(gradients) {}

GradientTurns::Line& GradientTurns::line(std::size_t gradient, std::int32_t rank) const {
  return reinterpret_cast<Line*>(
      memory_.bytes()
          .data())[gradient * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
}

void GradientTurns::say(std::size_t gradient, bool has) {
  line(gradient, rank_).has.store(has ? 1 : 0, std::memory_order_relaxed);
}

bool GradientTurns::any_has(std::size_t gradient) const {
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (line(gradient, rank).has.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

std::uint64_t GradientTurns::added(std::size_t gradient) const {
  return line(gradient, 0).added.load(std::memory_order_acquire);
}

void GradientTurns::await(std::size_t gradient, std::uint64_t added) {
  wait_([&] { return this->added(gradient) >= added; });
}

void GradientTurns::await_turn(std::size_t gradient) {
  await(gradient,
        rounds_[gradient] * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank_));
}

void GradientTurns::pass(std::size_t gradient) {
  ++rounds_[gradient];
  line(gradient, 0).added.fetch_add(1, std::memory_order_release);
}

void GradientTurns::await_all(std::size_t gradient) {
  await(gradient, rounds_[gradient] * static_cast<std::uint64_t>(ranks_));
}

void GradientTurns::say_part(double part) {
  line(gradients_, rank_).part = part;
}

double GradientTurns::sum_of_parts() const {
  double sum = 0;
  for (std::int32_t rank = 0; rank < ranks_; ++rank) sum += line(gradients_, rank).part;
  return sum;
}

SharedReduction::SharedReduction(SharedGradients shared, const std::vector<at::Tensor>& parameters,
                                 const std::vector<bool>& needed, const MakeRest& make_rest)
    : shared_(shared), parameters_(parameters), nonfinite_(parameters.size()) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto gradient = shared_.parameters.gradient_of(parameters[p]);
    if (needed[p] && gradient) {
      members_.push_back({p, *gradient});
    } else {
      others_.push_back(p);
      rest_parameters_.push_back(parameters[p]);
      rest_needed_.push_back(needed[p]);
    }
  }
  if (!others_.empty()) rest_ = make_rest(rest_parameters_, rest_needed_, rest_habits_);
}

void SharedReduction::begin(const MicroBatchFacts& facts) {
  TORCH_INTERNAL_ASSERT(facts.unit == 1, "gradients of an adopted loop have no weights");
  if (rest_) rest_->begin(facts);
}

void SharedReduction::flush() {
  const at::NoGradGuard no_grad;
  for (const Member& each : members_)
    shared_.turns.say(each.gradient, parameters_[each.parameter].grad().defined());
  // Behind this nobody reads the last averages any more.
  Fnv1a64 what;
  what.add("the averaging of gradients");
  for (const Member& each : members_) what.add(static_cast<std::uint64_t>(each.gradient));
  if (const auto other = shared_.order.arrive(what.value())) {
    shared_.order.complete();
    throw Error(failed_precondition(
                    "shard.mode: expected all ranks of the node to average gradients, found "
                    "another write on rank ",
                    *other, " of the node; let all ranks change parameters in the same order"),
                Error::Scope::all_ranks);
  }
  for (Member& each : members_) {
    each.any = shared_.turns.any_has(each.gradient);
    nonfinite_[each.parameter] = 0;
    if (each.any) add_own(each);
  }
  if (rest_) rest_->flush();
}

// A rank without a gradient adds zeros, as its part of a bucket would: they change the sign of -0.
void SharedReduction::add_own(const Member& member) {
  at::Tensor& own = parameters_[member.parameter].mutable_grad();
  const at::Tensor sum = shared_.parameters.writable_gradient(member.gradient);
  shared_.turns.await_turn(member.gradient);
  if (shared_.turns.rank() == 0) {
    if (own.defined()) {
      nonfinite_[member.parameter] = put_in_place(dense(own), sum, 1);
    } else {
      sum.zero_();
    }
  } else if (own.defined()) {
    const at::Tensor flat = dense(own).detach().contiguous().view({-1});
    nonfinite_[member.parameter] = count_nonfinite(flat);
    sum.add_(flat);
  } else {
    sum.add_(0.0);
  }
  shared_.turns.pass(member.gradient);
  own.reset();
}

StepBallot SharedReduction::merge(StepBallot mine, const std::function<void()>& pump) {
  for (const std::size_t other : others_) nonfinite_[other] = 0;  // of the step before
  vote_on_overflow(nonfinite_, mine);
  if (!rest_) {
    require(
        reduce_values(shared_.ranks, std::span(&mine, 1), transport::merging<StepBallot>(), pump),
        "step reduction");
    return mine;
  }
  const StepBallot merged = rest_->merge(mine, pump);
  for (std::size_t i = 0; i < others_.size(); ++i) nonfinite_[others_[i]] = rest_->nonfinite()[i];
  return merged;
}

double SharedReduction::hand_back(double total, double loss_scale) {
  const at::NoGradGuard no_grad;
  DividedNorm divided(total * loss_scale);
  for (const Member& each : members_) {
    if (!each.any) continue;
    shared_.turns.await_all(each.gradient);
    const ShardedParameter& gradient = shared_.parameters.all()[each.gradient];
    if (!gradient.own.is_empty()) divided.add(gradient.slice);
    parameters_[each.parameter].mutable_grad() = gradient.tensor;
  }
  const double own = divided.norm();
  shared_.turns.say_part(own * own);
  shared_.order.complete();
  shared_.order.wait_for_completed();
  const double shared = std::sqrt(shared_.turns.sum_of_parts());
  return rest_ ? std::hypot(shared, rest_->hand_back(total, loss_scale)) : shared;
}

}  // namespace cox::detail
