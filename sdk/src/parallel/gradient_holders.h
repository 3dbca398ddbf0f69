// GradientHolders knows how a step of this job will treat its gradients. A reducer registers a
// callback that answers; the newest living one counts, and where there is none, gradients stay in
// .grad. The calibration before the first step asks. It holds weak references; the reducers own the
// callbacks. Used by the thread that trains.
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
  several,  // some steps add up the gradients of several
};

// The gradients of a step. Those that are not `released` stay from where backward computes them to
// the end of the step. Buckets count nowhere: they lie in memory that ranks share.
struct GradientHolding {
  // Parameters whose gradient is gone as soon as it is complete: moved to a bucket, or added to
  // memory that is resident.
  std::vector<at::Tensor> released;
  std::int64_t resident_bytes = 0;  // of sums of gradients, all through a step
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
