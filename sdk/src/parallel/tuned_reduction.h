// TunedReduction is the gradient reduction of one list of parameters, together with the search for
// its best layout of buckets (BucketTuning) and with what is saved of both. Owned by a Reducer; all
// ranks construct and call it alike. Training thread.
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
  // Parameters that require no gradient now have no place in a bucket. `parameters` must outlive
  // it. `maker` may be empty; another way than that of buckets is not tuned. Collective. Throws
  // cox::Error.
  TunedReduction(const ReductionSetup& setup, const std::vector<at::Tensor>& parameters,
                 ReductionMaker maker);

  GradientReduction* operator->() const { return reduction_.get(); }
  StepExchange* exchange() const { return reduction_->exchange(); }  // null: nothing is exchanged

  // Lays buckets out anew where the program gave a parameter another shape, type or device. Called
  // at the start of a step, on all ranks. Collective where one has changed. Throws cox::Error.
  void follow_forms();

  // Returns the first parameter that has begun to require a gradient since the start, and therefore
  // has no place.
  std::optional<std::size_t> unexpected() const;

  // Goes on with the search after a step in which every rank took part, and lays buckets out anew
  // where the search asks for it. `cost_seconds` is what the step's buckets cost this rank in
  // adding, copying and waiting; the time of a whole step would say the same through many times the
  // noise. `pump` is called while it waits for the other ranks' part of the search, not while they
  // open new buckets together. Collective. Throws cox::Error.
  void tune(double cost_seconds, const BetweenPolls& pump = {});

  // Returns what a resumed run needs to go on with the same bits and the same buckets. It is equal
  // on all ranks.
  std::vector<NamedTensor> saved() const;
  // Takes over what saved() gave. Collective. Returns invalid_argument for what is another model's
  // or damaged.
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
  const std::vector<bool> required_;  // of the parameters at the start
  std::vector<ParameterForm> forms_;  // of the parameters, as the buckets have them
  BucketTuning tuning_;
  GradientHabits habits_;
  std::unique_ptr<GradientReduction> reduction_;
};

}  // namespace cox::detail
