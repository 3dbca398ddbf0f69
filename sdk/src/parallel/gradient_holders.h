// GradientHolders answers how a step of the job will treat its gradients. A reducer registers a
// callback; the newest living callback answers, and without one, gradients stay in .grad. The
// calibration before the first step asks. Holds weak references; the reducers own the callbacks.
// Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <vector>

namespace cox::detail {

enum class MicroBatches : std::uint8_t {
  one,      // one micro-batch a step
  several,  // some steps add up the gradients of several micro-batches
};

// Memory of a step's gradients. Gradients that are not `released` stay where backward computes them
// to the end of the step. Buckets count nowhere, because ranks share their memory.
struct GradientHolding {
  // Parameters whose gradient is freed as soon as it is complete: moved to a bucket, or added to
  // resident memory.
  std::vector<at::Tensor> released;
  std::int64_t resident_bytes = 0;  // sums of gradients, throughout a step
};

class GradientHolders {
 public:
  using Holder = std::function<GradientHolding(MicroBatches)>;

  void add(const std::shared_ptr<const Holder>& holder) {
    std::erase_if(holders_, [](const auto& each) { return each.expired(); });
    holders_.push_back(holder);
  }

  GradientHolding held(MicroBatches micro_batches) const {
    for (const auto& each : std::views::reverse(holders_)) {
      if (const auto holder = each.lock()) return (*holder)(micro_batches);
    }
    return {};
  }

 private:
  std::vector<std::weak_ptr<const Holder>> holders_;
};

}  // namespace cox::detail
