// BucketQueue: which gradients of a step are still missing from which bucket, and how far the
// buckets have been started: each as soon as it is complete and all before it have been. Value of
// one reduction; training thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sdk/src/parallel/gradient_layout.h"
#include "sdk/src/parallel/step_exchange.h"

namespace cox::detail {

class BucketQueue {
 public:
  explicit BucketQueue(GradientLayout layout);

  const GradientLayout& layout() const { return layout_; }
  const BucketPlace& place(std::size_t parameter) const { return layout_.places[parameter]; }
  // Whether a gradient of this parameter still belongs into the open step.
  bool expects(std::size_t parameter) const;

  // Its part of the bucket is written.
  void close(std::size_t parameter);
  // Starts what is complete, then gives buckets on their way a moment.
  void start_complete(StepExchange& exchange);
  // All of `write(parameter)` that is still expected, bucket by bucket, each started at once.
  template <class Write>
  void flush(StepExchange& exchange, Write write) {
    for (const GradientBucket& bucket : layout_.buckets) {
      for (const std::size_t p : bucket.parameters) {
        if (expects(p)) write(p), close(p);
      }
      start_complete(exchange);
    }
  }
  // The step is over.
  void reset();

 private:
  GradientLayout layout_;
  std::vector<bool> is_closed_;
  std::vector<std::size_t> missing_;  // gradients of each bucket
  std::size_t started_ = 0;
};

}  // namespace cox::detail
