#include "sdk/src/parallel/step_exchange.h"

#include <torch/torch.h>

#include <cstring>
#include <string>
#include <utility>

#include "coxswain/error.h"

namespace cox::detail {
namespace {

using transport::BucketSpec;

void require_done(const Status& status, const char* what) {
  if (!status.ok()) throw Error(status.with_context(what));
}

template <class T>
BucketSpec numbers(std::size_t count, const transport::Reduction& reduction) {
  return {count * sizeof(T), reduction};
}

template <class T>
std::span<T> as_numbers(transport::Bytes bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

BucketSpec spec_of(const GradientBucket& bucket) {
  const bool is_double = bucket.type == BucketType::fp64;
  return {static_cast<std::size_t>(bucket.bytes()),
          is_double ? transport::sum_f64() : transport::sum_f32()};
}

// A view of it may outlive the exchange, in .grad of a model.
at::Tensor tensor_of(transport::BucketExchange& exchange, std::size_t index,
                     const GradientBucket& bucket) {
  const auto type = bucket.type == BucketType::fp64 ? at::kDouble : at::kFloat;
  at::Tensor flat = torch::from_blob(
      exchange.buffer(index).data(), {bucket.elements}, [memory = exchange.memory()](void*) {},
      at::TensorOptions().dtype(type));
  return flat.zero_();  // the gaps between gradients stay zero
}

}  // namespace

StepExchange::StepExchange(transport::Communicator& ranks, const GradientLayout& layout,
                           const Extent& extent, const transport::ExchangeOptions& options) {
  std::vector<BucketSpec> specs;
  for (const GradientBucket& bucket : layout.buckets) specs.push_back(spec_of(bucket));
  specs.push_back(numbers<float>(extent.counts, transport::sum_f32()));
  if (extent.magnitudes > 0) {
    specs.push_back(numbers<double>(extent.magnitudes, transport::max_f64()));
  }
  specs.push_back({sizeof(StepBallot), transport::merging<StepBallot>()});
  bookkeeping_ = specs.size() - layout.buckets.size();
  auto made = transport::BucketExchange::create(ranks, std::move(specs), options);
  require_done(made.status(), "gradient buckets");
  exchange_ = std::move(*made);
  const torch::NoGradGuard no_grad;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    flats_.push_back(tensor_of(*exchange_, b, layout.buckets[b]));
  }
  counts_ = as_numbers<float>(exchange_->buffer(flats_.size()));
  if (extent.magnitudes > 0) {
    magnitudes_ = as_numbers<double>(exchange_->buffer(flats_.size() + 1));
  }
  ballot_ = exchange_->buffer(flats_.size() + bookkeeping_ - 1);
}

void StepExchange::start(std::size_t bucket) {
  require_done(exchange_->start(bucket), "gradient reduction");
}

void StepExchange::advance() {
  require_done(exchange_->advance(), "gradient reduction");
}

StepBallot StepExchange::merge(const StepBallot& mine, const std::function<void()>& pump) {
  StepBallot merged = mine;
  std::memcpy(ballot_.data(), &merged, sizeof(merged));
  for (std::size_t b = 0; b < bookkeeping_; ++b) {
    require_done(exchange_->start(flats_.size() + b), "step reduction");
  }
  require_done(exchange_->wait_all(pump), "step reduction");
  std::memcpy(&merged, ballot_.data(), sizeof(merged));
  return merged;
}

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
