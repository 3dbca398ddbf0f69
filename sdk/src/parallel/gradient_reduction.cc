#include "sdk/src/parallel/gradient_reduction.h"

#include <torch/torch.h>

#include <utility>

#include "sdk/src/parallel/exact_reduction.h"
#include "sdk/src/parallel/gradient_norm.h"
#include "sdk/src/parallel/overlapped_reduction.h"

namespace cox::detail {
namespace {

void divide_gradients(const std::vector<at::Tensor>& parameters, double divisor) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  if (!gradients.empty()) at::_foreach_div_(gradients, divisor);
}

// As buckets make them with several ranks.
void make_dense(const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& p : parameters) {
    const at::Tensor gradient = p.grad();
    if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
    p.mutable_grad() = gradient.to_dense();
  }
}

std::unique_ptr<StepExchange> exchange_of(const ReductionSetup& setup, const GradientLayout& layout,
                                          const StepExchange::Extent& extent) {
  transport::ExchangeOptions options;
  options.wait = setup.wait;
  if (!setup.config.shared_memory) options.shared_memory = transport::SharedMemory::avoid;
  return std::make_unique<StepExchange>(setup.ranks, layout, extent, options);
}

}  // namespace

StepBallot LocalReduction::merge(StepBallot mine, const std::function<void()>&) {
  return mine;
}

double LocalReduction::hand_back(double total, double loss_scale) {
  make_dense(parameters_);
  const double unit = std::exchange(unit_, 0.0);
  const double divisor = unit > 0 ? total / unit * loss_scale : 1;
  if (divisor != 1) divide_gradients(parameters_, divisor);
  return gradient_norm(parameters_);
}

// Looked at only in a step that went wrong; the division keeps what is not finite.
const std::vector<std::int64_t>& LocalReduction::nonfinite() const {
  nonfinite_.clear();
  for (const at::Tensor& p : parameters_) nonfinite_.push_back(count_nonfinite(p.grad()));
  return nonfinite_;
}

std::vector<bool> required_of(const std::vector<at::Tensor>& parameters) {
  std::vector<bool> required;
  for (const at::Tensor& p : parameters) required.push_back(p.requires_grad());
  return required;
}

std::unique_ptr<GradientReduction> make_reduction(const ReductionSetup& setup,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  const std::vector<ExactBin>& bins) {
  const std::size_t count = parameters.size();
  const bool is_exact = setup.config.reproducible;
  if (!is_exact && setup.ranks.size() == 1) return std::make_unique<LocalReduction>(parameters);
  const auto shapes =
      is_exact ? exact_shapes(parameters, needed) : ordinary_shapes(parameters, needed);
  GradientLayout layout = lay_out(shapes, choice.order, choice.sizes);
  if (is_exact) {
    auto exchange = exchange_of(setup, layout, {count + 1, count});
    return std::make_unique<ExactReduction>(parameters, std::move(layout), std::move(exchange),
                                            bins);
  }
  auto exchange = exchange_of(setup, layout, {count, 0});
  return std::make_unique<OverlappedReduction>(parameters, std::move(layout), std::move(exchange));
}

}  // namespace cox::detail
