#include "tests/bench/averaging.h"

#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::bench {
namespace {

detail::GradientLayout layout_of(const std::vector<at::Tensor>& parameters) {
  return detail::lay_out(detail::ordinary_shapes(parameters, detail::required_of(parameters)),
                         detail::reverse_order(parameters.size()), {});
}

std::unique_ptr<detail::StepExchange> exchange_of(transport::Communicator& ranks,
                                                  const transport::WaitPolicy& policy,
                                                  const std::vector<at::Tensor>& parameters) {
  transport::ExchangeOptions options;
  options.wait = policy;
  return std::make_unique<detail::StepExchange>(
      ranks, layout_of(parameters), detail::StepExchange::Extent{parameters.size(), 0}, options);
}

}  // namespace

Averaging::Averaging(transport::Communicator& ranks, transport::WaitPolicy policy,
                     std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      reduction_(parameters_, layout_of(parameters_), exchange_of(ranks, policy, parameters_)),
      hooks_(parameters_, [this](std::size_t parameter) { reduction_.ready(parameter); }) {}

void Averaging::backward(const at::Tensor& loss, double weight) {
  reduction_.begin({.weight = weight, .unit = weight});
  loss.backward();
  reduction_.end();
}

double Averaging::average(double loss, double weight) {
  StepBallot mine;
  mine.loss_sum = loss * weight;
  mine.weight = weight;
  const StepBallot merged = reduction_.merge(mine, [] {});
  const double norm = reduction_.hand_back(merged.weight, 1);
  if (!std::isfinite(norm)) throw std::runtime_error("gradients blew up");
  return norm;
}

}  // namespace cox::bench
