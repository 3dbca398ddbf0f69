#include "sdk/src/parallel/overlapped_reduction.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <utility>

#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/gradient_norm.h"

namespace cox::detail {
namespace {

at::Tensor dense(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
}

std::span<float> floats_of(const at::Tensor& place) {
  return {place.mutable_data_ptr<float>(), static_cast<std::size_t>(place.numel())};
}

// Of a power of two: multiplying by its inverse then is dividing, in the pass that takes the norm.
bool has_exact_inverse(double divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5 && std::abs(exponent) < 100;
}

}  // namespace

std::vector<GradientShape> ordinary_shapes(const std::vector<at::Tensor>& parameters,
                                           const std::vector<bool>& needed) {
  std::vector<GradientShape> shapes;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool is_double = parameters[p].scalar_type() == at::kDouble;
    const auto type = is_double ? BucketType::fp64 : BucketType::fp32;
    shapes.push_back({parameters[p].numel(), type, needed[p]});
  }
  return shapes;
}

OverlappedReduction::OverlappedReduction(const std::vector<at::Tensor>& parameters,
                                         GradientLayout layout,
                                         std::unique_ptr<StepExchange> exchange)
    : parameters_(parameters),
      queue_(std::move(layout)),
      exchange_(std::move(exchange)),
      places_(parameters.size()),
      has_view_(parameters.size()),
      views_(parameters.size()),
      nonfinite_(parameters.size()),
      thread_(std::this_thread::get_id()) {
  const torch::NoGradGuard no_grad;
  // Autograd must not see views here: zero_grad() of torch::optim refuses to detach them.
  const at::AutoDispatchBelowADInplaceOrView untracked;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const BucketPlace& place = queue_.place(p);
    if (place.bucket == BucketPlace::kNowhere) continue;
    const at::Tensor& flat = exchange_->flat(place.bucket);
    places_[p] = flat.narrow(0, place.offset, parameters_[p].numel());
    views_[p] = places_[p].view(parameters_[p].sizes());
    has_view_[p] = parameters_[p].is_cpu() && parameters_[p].scalar_type() == flat.scalar_type();
  }
}

double OverlappedReduction::factor(const MicroBatchFacts& facts) const {
  return facts.weight / facts.unit * facts.loss_scale;
}

void OverlappedReduction::begin(const MicroBatchFacts& facts) {
  facts_ = facts;
  is_sending_ = facts.which == MicroBatch::last;
  if (is_sending_) order_.clear();
}

void OverlappedReduction::ready(std::size_t parameter) {
  if (!is_sending_ || std::this_thread::get_id() != thread_) return;
  if (!queue_.expects(parameter)) return;
  order_.push_back(static_cast<std::uint32_t>(parameter));
  put(parameter);
  queue_.close(parameter);
  queue_.start_complete(*exchange_);
}

void OverlappedReduction::end() {
  if (is_sending_) flush();
  is_sending_ = false;
}

void OverlappedReduction::flush() {
  queue_.flush(*exchange_, [this](std::size_t parameter) { put(parameter); });
}

void OverlappedReduction::put(std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  const at::Tensor& gradient = parameters_[parameter].grad();
  if (gradient.defined()) {
    put_gradient(parameter, dense(gradient));
  } else {
    places_[parameter].zero_();
    nonfinite_[parameter] = 0;
  }
  exchange_->counts()[parameter] = gradient.defined() ? 1 : 0;
  if (gradient.defined() && has_view_[parameter]) {
    parameters_[parameter].mutable_grad() = views_[parameter];
  }
}

void OverlappedReduction::put_gradient(std::size_t parameter, const at::Tensor& gradient) {
  at::Tensor& place = places_[parameter];
  if (place.scalar_type() == at::kFloat && gradient.is_cpu()) {
    nonfinite_[parameter] =
        copy_and_scan(gradient.contiguous(), floats_of(place), static_cast<float>(facts_.unit))
            .nonfinite;
    return;
  }
  place.copy_(gradient.reshape({-1}));
  if (facts_.unit != 1) place.mul_(facts_.unit);
  nonfinite_[parameter] = count_nonfinite(place);
}

StepBallot OverlappedReduction::merge(StepBallot mine, const std::function<void()>& pump) {
  const bool is_bad = std::any_of(nonfinite_.begin(), nonfinite_.end(),
                                  [](std::int64_t count) { return count > 0; });
  mine.overflow_ranks = is_bad ? 1 : 0;
  const StepBallot merged = exchange_->merge(mine, pump);
  queue_.reset();
  facts_ = {};
  return merged;
}

double OverlappedReduction::hand_back(double total, double loss_scale) {
  const torch::NoGradGuard no_grad;
  const double divisor = total * loss_scale;
  double squares = 0;
  std::vector<at::Tensor> others;
  // In the parameters' order: a norm that no layout of buckets changes.
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!places_[p].defined()) continue;
    at::Tensor& grad = parameters_[p].mutable_grad();
    if (exchange_->counts()[p] == 0) {
      grad.reset();
      continue;
    }
    if (places_[p].scalar_type() == at::kFloat && has_exact_inverse(divisor)) {
      const GradientScan seen =
          copy_and_scan(places_[p], floats_of(places_[p]), static_cast<float>(1 / divisor));
      squares += seen.squares;
    } else {
      places_[p].div_(divisor);
      others.push_back(places_[p]);
    }
    grad = has_view_[p] ? views_[p] : views_[p].to(parameters_[p].options());
  }
  return others.empty() ? std::sqrt(squares) : std::hypot(std::sqrt(squares), l2_norm(others));
}

}  // namespace cox::detail
