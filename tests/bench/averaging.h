// Averages gradients as a data-parallel loop without a coordinator would: with the same buckets,
// sums and overlap as Coxswain's reducer, and a few numbers for loss and norm. Collective.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/parallel/ready_hooks.h"

namespace cox::bench {

class Averaging {
 public:
  Averaging(transport::Communicator& ranks, transport::WaitPolicy policy,
            std::vector<at::Tensor> parameters);
  // Runs autograd and sends complete buckets meanwhile.
  void backward(const at::Tensor& loss, double weight);
  // Returns the norm of the averages. Throws std::runtime_error for non-finite gradients,
  // cox::Error if the transport fails.
  double average(double loss, double weight);

 private:
  const std::vector<at::Tensor> parameters_;
  const transport::WaitPolicy policy_;
  const ReductionConfig config_;
  detail::DeviceLink devices_{std::chrono::seconds(60)};
  detail::GradientHabits habits_;
  std::unique_ptr<detail::GradientReduction> reduction_;
  detail::ReadyHooks hooks_;
};

}  // namespace cox::bench
