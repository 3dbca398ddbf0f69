#include "tests/bench/averaging.h"

#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

namespace cox::bench {

Averaging::Averaging(transport::Communicator& ranks, transport::WaitPolicy policy,
                     std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      policy_(policy),
      reduction_(detail::make_reduction({ranks, policy_, config_, devices_, Seconds(60)},
                                        parameters_, detail::required_of(parameters_),
                                        {detail::reverse_order(parameters_.size()), {}}, habits_)),
      hooks_(parameters_, [this](std::size_t parameter) { reduction_->ready(parameter); }) {}

void Averaging::backward(const at::Tensor& loss, double weight) {
  reduction_->begin({.weight = weight, .unit = weight});
  loss.backward();
  reduction_->end();
}

double Averaging::average(double loss, double weight) {
  StepBallot mine;
  mine.loss_sum = loss * weight;
  mine.weight = weight;
  const StepBallot merged = reduction_->merge(mine, [] {});
  const double norm = reduction_->hand_back(merged.weight, 1);
  if (!std::isfinite(norm)) throw std::runtime_error("gradients blew up");
  return norm;
}

}  // namespace cox::bench
