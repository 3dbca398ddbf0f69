// OverlappedReduction: the ordinary way of averaging. In the backward pass of the last micro-batch
// each finished gradient is copied to its bucket and .grad becomes a view of it; a bucket whose
// gradients are all there is started while backward goes on with earlier layers, and is moved on at
// every gradient that follows. Buckets start in their order, whatever order this rank finishes them
// in. What is left starts at the end of backward. Sums are taken in ascending ranks and divided
// once: equal bits on all ranks and in all runs with the same layout of ranks.
// Thread rule: the thread that trains; hooks of other threads are not used, their gradients are
// copied at the end of backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "sdk/src/parallel/gradient_layout.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/parallel/step_exchange.h"

namespace cox::detail {

// fp64 parameters in fp64, all others in fp32. `needed`: one a parameter, whether it has a place.
std::vector<GradientShape> ordinary_shapes(const std::vector<at::Tensor>& parameters,
                                           const std::vector<bool>& needed);

class OverlappedReduction final : public GradientReduction {
 public:
  OverlappedReduction(const std::vector<at::Tensor>& parameters, GradientLayout layout,
                      std::unique_ptr<StepExchange> exchange);

  double factor(const MicroBatchFacts& facts) const override;
  void begin(const MicroBatchFacts& facts) override;
  void ready(std::size_t parameter) override;
  void end() override;
  void flush() override;
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }

  StepExchange* exchange() override { return exchange_.get(); }
  std::span<const std::uint32_t> order() const override { return order_; }
  bool moves_when_ready(std::size_t parameter) const override { return has_view_[parameter]; }

 private:
  void put(std::size_t parameter);
  void put_gradient(std::size_t parameter, const at::Tensor& gradient);

  const std::vector<at::Tensor>& parameters_;
  BucketQueue queue_;
  std::unique_ptr<StepExchange> exchange_;
  std::vector<at::Tensor> places_;  // 1-D, of each parameter in its bucket
  std::vector<bool> has_view_;      // .grad may be the place itself
  std::vector<at::Tensor> views_;   // places_ in the parameters' shapes
  std::vector<std::int64_t> nonfinite_;
  std::vector<std::uint32_t> order_;
  std::thread::id thread_;
  MicroBatchFacts facts_;
  bool is_sending_ = false;  // in the backward pass of the last micro-batch
};

}  // namespace cox::detail
