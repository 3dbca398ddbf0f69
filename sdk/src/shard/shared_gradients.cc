#include "sdk/src/shard/shared_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "coordinator/core/hash.h"
#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

constexpr std::size_t kMostQueuedBytes = std::size_t{8} << 20;

}  // namespace

// Each gradient has one line per rank; rank 0's line counts the additions. Behind all others, each
// rank has one more line, for its part of a sum and its writes at the start of the backward pass.
struct alignas(transport::kLine) GradientTurns::Line {
  std::atomic<std::uint64_t> added;
  std::atomic<std::uint64_t> has;
  std::atomic<std::uint64_t> begun;
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

void GradientTurns::say(std::size_t gradient, Has has) {
  line(gradient, rank_).has.store(static_cast<std::uint64_t>(has), std::memory_order_relaxed);
}

GradientTurns::Has GradientTurns::any_says(std::size_t gradient) const {
  std::uint64_t most = 0;
  for (std::int32_t rank = 0; rank < ranks_; ++rank)
    most = std::max(most, line(gradient, rank).has.load(std::memory_order_relaxed));
  return static_cast<Has>(most);
}

std::uint64_t GradientTurns::added(std::size_t gradient) const {
  return line(gradient, 0).added.load(std::memory_order_acquire);
}

void GradientTurns::await(std::size_t gradient, std::uint64_t added) {
  wait_([&] { return this->added(gradient) >= added; });
}

void GradientTurns::say_begun(std::uint64_t writes) {
  line(gradients_, rank_).begun.store(writes, std::memory_order_release);
}

bool GradientTurns::have_begun(std::uint64_t writes) const {
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (line(gradients_, rank).begun.load(std::memory_order_acquire) < writes) return false;
  }
  return true;
}

std::uint64_t GradientTurns::own_turn(std::size_t gradient) const {
  return rounds_[gradient] * static_cast<std::uint64_t>(ranks_) + static_cast<std::uint64_t>(rank_);
}

bool GradientTurns::is_turn(std::size_t gradient) const {
  return added(gradient) >= own_turn(gradient);
}

void GradientTurns::await_turn(std::size_t gradient) {
  await(gradient, own_turn(gradient));
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

OwnGradients::OwnGradients(const ShardedParameters& parameters, WriteOrder& order,
                           GradientTurns& turns, WriteOrder::Wait wait)
    : parameters_(parameters),
      order_(order),
      turns_(turns),
      wait_(std::move(wait)),
      states_(parameters.all().size()) {
  std::vector<at::Tensor> hooked;
  std::vector<std::size_t> gradients;
  for (const ShardedParameter& each : parameters.all()) {
    if (!each.gradient) continue;
    hooked.push_back(each.tensor);
    gradients.push_back(*each.gradient);
  }
  hooks_.emplace(hooked, [this, gradients](std::size_t place) { ready(gradients[place]); });
}

at::Tensor& OwnGradients::own(std::size_t gradient) const {
  return parameters_.all()[parameters_.owner(gradient)].tensor.mutable_grad();
}

void OwnGradients::backward_begins(double unit) {
  unit_ = unit;
  is_in_pass_ = true;
  for (State& state : states_) {
    state.is_ready = false;
    state.goes_on = state.is_added;  // the last pass failed: its sum was never averaged
  }
  queue_.clear();
  queue_begin_ = queued_bytes_ = 0;
  is_early_ = false;
  writes_ = order_.number();
  turns_.say_begun(writes_);
}

// Autograd also calls the hook for parameters that get no gradient, and in trial passes.
void OwnGradients::ready(std::size_t gradient) {
  const at::Tensor& value = own(gradient);
  if (!is_in_pass_ || !value.defined()) return;
  State& state = states_[gradient];
  state.goes_on = state.goes_on || state.is_added;
  state.comes_again = state.comes_again || state.is_ready;
  if (std::exchange(state.is_ready, true) || state.comes_again) return;
  // A gradient with a history (create_graph) is still needed when gradients are averaged, and so is
  // the form of a sparse one.
  if (!is_early_ || !state.is_steady || value.requires_grad() || value.is_sparse()) return;
  queue_.push_back(gradient);
  queued_bytes_ += value.nbytes();
  add_in_turn();
  if (queued_bytes_ > kMostQueuedBytes) wait_for_turns();
}

bool OwnGradients::may_add() const {
  return queue_begin_ < queue_.size() && turns_.is_turn(queue_[queue_begin_]) &&
         (turns_.rank() > 0 || turns_.have_begun(writes_));
}

// Adds in the order of completion. Ranks run the same program, so the oldest gradient's turn comes
// first.
void OwnGradients::add_in_turn() {
  const at::NoGradGuard no_grad;
  for (; may_add(); ++queue_begin_) {
    const std::size_t gradient = queue_[queue_begin_];
    queued_bytes_ -= own(gradient).nbytes();
    states_[gradient].nonfinite = add(gradient);
    states_[gradient].is_added = true;
  }
}

// A rank whose pass ended without this gradient adds nothing before all ranks average. So the wait
// also ends when another rank arrives at the averaging.
void OwnGradients::wait_for_turns() {
  while (queued_bytes_ > kMostQueuedBytes) {
    wait_([this] { return may_add() || order_.has_any_arrived_behind(writes_); });
    if (!may_add()) return;
    add_in_turn();
  }
}

void OwnGradients::backward_ended() {
  is_in_pass_ = is_early_ = false;
  for (std::size_t i = 0; i < queue_begin_; ++i) {
    at::Tensor& value = own(queue_[i]);
    if (!value.defined()) value = parameters_.all()[queue_[i]].tensor;
  }
}

GradientTurns::Has OwnGradients::has(std::size_t gradient) const {
  using Has = GradientTurns::Has;
  const State& state = states_[gradient];
  if (state.goes_on) return Has::more_than_was_added;
  return state.is_added || own(gradient).defined() ? Has::one : Has::none;
}

bool OwnGradients::is_averaged(std::size_t gradient) const {
  return !states_[gradient].is_added && parameters_.storage_of(own(gradient)) != nullptr;
}

std::int64_t OwnGradients::add_rest(std::size_t gradient) {
  State& state = states_[gradient];
  if (std::exchange(state.is_added, false)) {
    own(gradient).reset();  // add() resets the others
    return state.nonfinite;
  }
  steady_ -= state.is_steady ? 1 : 0;
  state.is_steady = state.is_ready && !state.comes_again;
  steady_ += state.is_steady ? 1 : 0;
  turns_.await_turn(gradient);
  return add(gradient);
}

// A rank without a gradient adds zeros, because its part of a bucket would be zeros: adding zeros
// changes the sign of -0.
std::int64_t OwnGradients::add(std::size_t gradient) {
  at::Tensor& value = own(gradient);
  const at::Tensor sum = parameters_.writable_gradient(gradient);
  std::int64_t nonfinite = 0;
  if (turns_.rank() == 0) {
    if (value.defined()) {
      nonfinite = put_in_place(dense(value), sum, unit_);
    } else {
      sum.zero_();
    }
  } else if (value.defined()) {
    at::Tensor flat = dense(value).detach().contiguous().view({-1});
    if (unit_ != 1) flat = flat * unit_;
    nonfinite = count_nonfinite(flat);
    sum.add_(flat);
  } else {
    sum.add_(0.0);
  }
  turns_.pass(gradient);
  value.reset();
  return nonfinite;
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
  if (shared_.backward_begins) {
    shared_.backward_begins(facts.unit);
    if (facts.which == MicroBatch::last) shared_.own.add_early();
  }
  MicroBatchFacts others = facts;
  others.which = MicroBatch::more;  // flush() sends them
  if (rest_) rest_->begin(others);
}

void SharedReduction::end() {
  if (shared_.backward_begins) shared_.own.backward_ended();
  if (rest_) rest_->end();
}

void SharedReduction::flush() {
  if (rest_) rest_->flush();
}

void SharedReduction::add_all() {
  const at::NoGradGuard no_grad;
  for (const Member& each : members_) {
    at::Tensor& own = parameters_[each.parameter].mutable_grad();
    shared_.turns.say(each.gradient, shared_.own.has(each.gradient));
    if (own.defined() && shared_.own.is_averaged(each.gradient)) own = own.clone();
  }
  arrive();
  for (Member& each : members_) {
    const GradientTurns::Has has = shared_.turns.any_says(each.gradient);
    if (has == GradientTurns::Has::more_than_was_added) refuse(each);
    each.any = has == GradientTurns::Has::one;
    nonfinite_[each.parameter] = each.any ? shared_.own.add_rest(each.gradient) : 0;
  }
}

void SharedReduction::refuse(const Member& member) const {
  shared_.order.complete();
  throw Error(failed_precondition(
                  "shard.mode: expected ", shared_.parameters.all()[member.gradient].name,
                  " to be complete once in a backward pass, as before, found that a rank added to "
                  "it again (a backward pass inside another, or after one that failed); set "
                  "shard.mode=off"),
              Error::Scope::all_ranks);
}

// Meets the other ranks. Afterwards no rank reads the last averages any more.
void SharedReduction::arrive() {
  Fnv1a64 what;
  what.add("the averaging of gradients");
  for (const Member& each : members_) what.add(static_cast<std::uint64_t>(each.gradient));
  const auto other = shared_.order.arrive(what.value());
  if (!other) return;
  shared_.order.complete();
  throw Error(failed_precondition(
                  "shard.mode: expected all ranks of the node to average gradients, found "
                  "another write on rank ",
                  *other, " of the node; let all ranks change parameters in the same order"),
              Error::Scope::all_ranks);
}

// Without an average (no rank had a sample, or the step is repeated) the caller hands nothing back,
// and later writes would wait for this one.
StepBallot SharedReduction::merge(StepBallot mine, const std::function<void()>& pump) {
  add_all();
  const StepBallot merged = merge_ballots(std::move(mine), pump);
  if (merged.weight <= 0 || merged.repeat_max != 0) shared_.order.complete();
  return merged;
}

StepBallot SharedReduction::merge_ballots(StepBallot mine, const std::function<void()>& pump) {
  for (const std::size_t other : others_) nonfinite_[other] = 0;  // clears counts of the last step
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
  const double norm = rest_ ? std::hypot(shared, rest_->hand_back(total, loss_scale)) : shared;
  if (shared_.averaged) shared_.averaged();
  return norm;
}

}  // namespace cox::detail
