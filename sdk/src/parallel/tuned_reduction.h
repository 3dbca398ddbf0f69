// TunedReduction is the gradient reduction of one list of parameters, with the search for its best
// layout of buckets (BucketTuning) and the saved state of both. Owned by a Reducer; all ranks
// construct and call it alike. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/gradient_layout.h"
#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {

class TunedReduction {
 public:
  // Parameters that require no gradient now have no place in a bucket. `parameters` outlives the
  // object. `maker` may be empty; a reduction without buckets is not tuned. Collective. Throws
  // cox::Error.
  TunedReduction(const ReductionSetup& setup, const std::vector<at::Tensor>& parameters,
                 ReductionMaker maker);

  GradientReduction* operator->() const { return reduction_.get(); }
  StepExchange* exchange() const { return reduction_->exchange(); }  // null: nothing is exchanged

  // Lays buckets out anew if the program changed a parameter's shape, type or device. Called at the
  // start of a step, on all ranks. Collective after a change. Throws cox::Error.
  void follow_forms();

  // Returns the first parameter without a place that has begun to require a gradient since the
  // start.
  std::optional<std::size_t> unexpected() const;

  // Continues the search after a step with every rank, and lays buckets out anew if the search says
  // so. `cost_seconds` is this rank's cost of the step's buckets in adding, copying and waiting. A
  // whole step's time carries the same information with many times the noise. Calls `pump` while
  // waiting for the other ranks' part of the search, not while ranks open new buckets. Collective.
  // Throws cox::Error.
  void tune(double cost_seconds, const BetweenPolls& pump = {});

  // Returns the state for a resumed run with the same bits and the same buckets. Equal on all
  // ranks.
  std::vector<NamedTensor> saved() const;
  // Restores the state of saved(). Collective. Returns invalid_argument for another model's state
  // or a damaged one.
  Status restore(std::span<const NamedTensor> saved);

 private:
  void build();
  void adopt(const BucketChoice& choice, const BucketChoice& former);
  // Collective.
  std::vector<std::uint32_t> order_seen(const BetweenPolls& pump);
  void share(std::span<std::byte> bytes, RankId from, const BetweenPolls& pump);

  ReductionSetup setup_;
  const ReductionMaker maker_;
  const std::vector<at::Tensor>& parameters_;
  const std::vector<bool> required_;  // by parameter, at the start
  std::vector<ParameterForm> forms_;  // by parameter, in the current buckets
  BucketTuning tuning_;
  GradientHabits habits_;
  std::unique_ptr<GradientReduction> reduction_;
};

}  // namespace cox::detail
