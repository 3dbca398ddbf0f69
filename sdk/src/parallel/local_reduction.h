// LocalReduction: the way of a job of one rank: gradients stay where autograd left them and are
// only divided. Nothing is copied. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {

class LocalReduction final : public GradientReduction {
 public:
  explicit LocalReduction(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}

  double factor(const MicroBatchFacts& facts) const override {
    return facts.weight / facts.unit * facts.loss_scale;
  }
  void begin(const MicroBatchFacts& facts) override { unit_ = facts.unit; }
  void ready(std::size_t) override {}
  void end() override {}
  void flush() override {}
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override;

 private:
  const std::vector<at::Tensor>& parameters_;
  double unit_ = 0;  // 0 = no backward pass in this step
  mutable std::vector<std::int64_t> nonfinite_;
};

}  // namespace cox::detail
