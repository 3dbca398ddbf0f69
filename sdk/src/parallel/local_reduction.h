// LocalReduction: the way of a job of one rank: gradients stay where autograd left them and are
// only divided. Nothing is copied. Where a step is one micro-batch, so that nothing is divided
// either, the part of each gradient in the norm is taken when it is ready. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <thread>
#include <vector>

#include "sdk/src/parallel/gradient_norm.h"
#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {

class LocalReduction final : public GradientReduction {
 public:
  explicit LocalReduction(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  double factor(const MicroBatchFacts& facts) const override {
    return facts.weight / facts.unit * facts.loss_scale;
  }
  void begin(const MicroBatchFacts& facts) override;
  void ready(std::size_t parameter) override;
  void end() override { is_whole_ = false; }
  void flush() override {}
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override;

 private:
  const std::vector<at::Tensor>& parameters_;
  const std::thread::id thread_ = std::this_thread::get_id();
  double unit_ = 0;        // 0 = no backward pass in this step
  bool is_whole_ = false;  // in the backward pass of a step's only micro-batch
  SquaresSeen seen_;
  mutable std::vector<std::int64_t> nonfinite_;
};

}  // namespace cox::detail
