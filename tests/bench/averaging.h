// Averages gradients as a data-parallel loop without a coordinator would: flat buckets, the same
// all-reduces as Coxswain's reducer, and a few numbers for loss and norm. Collective.
#pragma once

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/flat_buckets.h"

namespace cox::bench {

class Averaging {
 public:
  Averaging(transport::Communicator& ranks, transport::WaitPolicy policy,
            std::vector<at::Tensor> parameters)
      : ranks_(ranks), policy_(policy), buckets_(std::move(parameters)) {}
  // Throws std::runtime_error when the transport fails.
  void average(double loss, double weight);

 private:
  void sum(std::span<std::byte> bytes, const transport::Reduction& reduction);

  transport::Communicator& ranks_;
  transport::WaitPolicy policy_;
  detail::FlatBuckets buckets_;
};

}  // namespace cox::bench
