#include "sdk/src/parallel/bucket_queue.h"

namespace cox::detail {

BucketQueue::BucketQueue(GradientLayout layout)
    : layout_(std::move(layout)), is_closed_(layout_.places.size()) {
  reset();
}

bool BucketQueue::expects(std::size_t parameter) const {
  return place(parameter).bucket != BucketPlace::kNowhere && !is_closed_[parameter];
}

void BucketQueue::close(std::size_t parameter) {
  is_closed_[parameter] = true;
  --missing_[place(parameter).bucket];
}

void BucketQueue::start_complete(StepExchange& exchange) {
  while (started_ < missing_.size() && missing_[started_] == 0) exchange.start(started_++);
  if (started_ > 0) exchange.advance();
}

void BucketQueue::reset() {
  is_closed_.assign(is_closed_.size(), false);
  missing_.clear();
  for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters.size());
  started_ = 0;
}

}  // namespace cox::detail
