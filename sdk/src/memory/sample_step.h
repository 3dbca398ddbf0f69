// SampleStep: what a trial before the first step is given by the loop that trains: a batch to try,
// and what a real step will hold in memory that the trial does not. GradientHolding: the part of it
// that whoever averages gradients knows. Values; the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cox::detail {

enum class MicroBatches : std::uint8_t {
  one,      // a step
  several,  // whose gradients are added up, in some step at least
};

struct SampleStep {
  torch::nn::Module& model;
  std::function<at::Tensor()> loss;       // forward of the batch; empty on a rank that has none
  std::int64_t resident_later_bytes = 0;  // held from some later step on: optimizer's state, copies
  MicroBatches micro_batches = MicroBatches::one;
};

// Gradients that are not `released` stay from where backward computes them to the end of the step.
// Buckets count nowhere: they lie in memory that ranks share.
struct GradientHolding {
  // Parameters whose gradient is gone as soon as it is complete: moved to a bucket, or added to
  // what is resident.
  std::vector<at::Tensor> released;
  std::int64_t resident_bytes = 0;  // of sums of gradients, all through a step
};

}  // namespace cox::detail
