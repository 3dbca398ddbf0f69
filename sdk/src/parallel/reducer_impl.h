// The reducer's state and the parts of its step. reducer.cc is the public face, reducer_step.cc the
// way from a backward pass to the average, reducer_layout.cc how buckets are laid out and found,
// reducer_state.cc what is saved. Training thread; references the session's state.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coxswain/reducer.h"
#include "sdk/src/parallel/bucket_tuning.h"
#include "sdk/src/parallel/buffer_sync.h"
#include "sdk/src/parallel/exact_sum.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/session/session_state.h"

namespace cox {

struct Reducer::Impl {
  Impl(Session session, std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers);
  ~Impl();

  // reducer_step.cc
  void backward(StepScope& step, const at::Tensor& loss, double weight, MicroBatch which);
  void observe(double loss, double weight);
  ReductionOutcome average(StepScope& step);
  void run_backward(const at::Tensor& loss, const detail::MicroBatchFacts& facts);
  // Whether this rank's own gradients must be seen before they are added to others'.
  bool wants_own_gradients() const;
  void check_parameters() const;
  void check_backward() const;
  void sample_gradients();
  StepBallot ballot();
  StepBallot merge(const StepBallot& mine);
  void hand_back(const StepBallot& merged, ReductionOutcome& outcome);
  void settle(const StepBallot& merged, const ReductionOutcome& outcome);
  void blame_nonfinite();
  void take_times();

  // reducer_layout.cc
  void build();
  void tune();
  std::vector<std::uint32_t> order_seen();              // collective
  void share(std::span<std::byte> bytes, RankId from);  // collective
  double cost_of_buckets() const;
  void adopt(const detail::BucketChoice& choice, const detail::BucketChoice& former);
  void show_held();
  bool is_reproducible() const { return state.config().reduction.reproducible; }

  // reducer_state.cc
  std::vector<NamedTensor> saved() const;
  Status restore(std::span<const NamedTensor> saved);

  Session session;  // keeps the state alive
  detail::SessionState& state;
  const std::vector<at::Tensor> parameters;
  const std::vector<bool> required;  // whether each parameter required a gradient at the start
  detail::BufferSync buffers;
  detail::BucketTuning tuning;
  std::vector<detail::ExactBin> bins;  // reproducible mode: to start from
  std::unique_ptr<detail::GradientReduction> reduction;
  std::optional<detail::ReadyHooks> hooks;
  std::shared_ptr<const detail::GradientHolders::Holder> holder;  // speaks for this reducer
  bool is_joining = false;

  // The open step. Gradients are kept in units of the first micro-batch's weight, so that a single
  // micro-batch needs no scaling at all.
  double unit = 0;
  double loss_sum = 0;
  double weight = 0;
  bool is_last_given = false;
  std::uint64_t active_elsewhere = 0;          // ranks with steps left, in the last merged ballot
  detail::Clock::time_point backward_began{};  // where there was none: it gave its zeros
  detail::Clock::time_point backward_ended{};
  ReductionReport last;  // of the step before
};

}  // namespace cox
