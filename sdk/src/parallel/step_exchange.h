// StepExchange: what ranks pass to each other in a step: the gradient buckets, then the bookkeeping
// behind them (how many ranks have a gradient for each parameter, largest magnitudes) and the
// step's ballot. A face of BucketExchange in tensors, with errors as cox::Error: an average that
// did not happen must not be trained on. Owned by a Reducer; the thread that trains; tensors keep
// the memory that they lie in. BucketQueue knows which gradients of the open step are still missing
// from which bucket, and starts each bucket as soon as it and all before it are complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/transport/exchange/bucket_exchange.h"
#include "sdk/src/parallel/gradient_layout.h"

namespace cox::detail {

class StepExchange {
 public:
  struct Extent {
    std::size_t counts = 0;      // numbers to be added up
    std::size_t magnitudes = 0;  // numbers whose maximum is wanted
  };

  // Collective. Throws cox::Error.
  StepExchange(transport::Communicator& ranks, const GradientLayout& layout, const Extent& extent,
               const transport::ExchangeOptions& options);

  std::size_t gradient_buckets() const { return flats_.size(); }
  // 1-D, on the CPU. This rank's part until start(), the sum after merge().
  const at::Tensor& flat(std::size_t bucket) const { return flats_[bucket]; }
  std::span<float> counts() { return counts_; }
  std::span<double> magnitudes() { return magnitudes_; }

  // In ascending order, each once between two merge().
  void start(std::size_t bucket);
  // A moment's work for buckets on their way. Never waits.
  void advance();

  // Starts what follows the gradients and waits for everything. Collective. Requires: all gradient
  // buckets were started.
  StepBallot merge(const StepBallot& mine, const std::function<void()>& pump);

  void leave(const std::string& why) { exchange_->leave(why); }
  const char* path() const { return exchange_->path(); }
  const std::string& note() const { return exchange_->note(); }
  transport::BucketTimes times(std::size_t bucket) const { return exchange_->times(bucket); }

 private:
  std::unique_ptr<transport::BucketExchange> exchange_;
  std::vector<at::Tensor> flats_;
  std::span<float> counts_;
  std::span<double> magnitudes_;
  std::span<std::byte> ballot_;
  std::size_t bookkeeping_ = 0;  // buckets behind the gradients
};

// Value of one reduction.
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
