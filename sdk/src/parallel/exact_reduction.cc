#include "sdk/src/parallel/exact_reduction.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sdk/src/parallel/gradient_norm.h"

namespace cox::detail {
std::vector<GradientShape> exact_shapes(const std::vector<at::Tensor>& parameters,
                                        const std::vector<bool>& needed) {
  std::vector<GradientShape> shapes;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    shapes.push_back({parameters[p].numel(), BucketType::fp64, needed[p]});
  }
  return shapes;
}

Status check_exact(const std::vector<at::Tensor>& parameters) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool is_double = parameters[p].scalar_type() == at::kDouble;
    if (parameters[p].is_cpu() && !is_double) continue;
    return invalid_argument(
        "reduction.reproducible: expected parameters in fp32, bf16 or fp16 on "
        "the CPU, found parameter " +
        std::to_string(p) + (is_double ? " in fp64" : " on a device") +
        "; convert it or switch the mode off");
  }
  return ok_status();
}

ExactReduction::ExactReduction(const std::vector<at::Tensor>& parameters, GradientLayout layout,
                               std::unique_ptr<StepExchange> exchange, std::vector<ExactBin> bins)
    : parameters_(parameters),
      queue_(std::move(layout)),
      exchange_(std::move(exchange)),
      bins_(std::move(bins)),
      averages_(parameters.size()),
      nonfinite_(parameters.size()),
      seen_(parameters.size()),
      amax_(parameters.size()),
      has_deposit_(parameters.size()),
      thread_(std::this_thread::get_id()) {}

std::span<double> ExactReduction::accumulator(std::size_t parameter) {
  const BucketPlace& place = queue_.place(parameter);
  double* flat = exchange_->flat(place.bucket).mutable_data_ptr<double>();
  return {flat + place.offset, static_cast<std::size_t>(parameters_[parameter].numel())};
}

void ExactReduction::begin(const MicroBatchFacts& facts) {
  facts_ = facts;
  is_open_ = true;
  ++micro_batches_;
  if (facts_.which == MicroBatch::last) order_.clear();
}

void ExactReduction::ready(std::size_t parameter) {
  if (!is_open_ || std::this_thread::get_id() != thread_) return;
  if (!queue_.expects(parameter)) return;
  add(parameter);
  if (facts_.which == MicroBatch::more) return;
  order_.push_back(static_cast<std::uint32_t>(parameter));
  complete(parameter);
  queue_.close(parameter);
  queue_.start_complete(*exchange_);
}

void ExactReduction::add(std::size_t parameter) {
  const torch::NoGradGuard no_grad;
  at::Tensor& grad = parameters_[parameter].mutable_grad();
  const std::span<double> sum = accumulator(parameter);
  if (!has_deposit_[parameter]) std::fill(sum.begin(), sum.end(), 0.0);
  const at::Tensor gradient = grad.layout() == at::kStrided ? grad : grad.to_dense();
  const Deposit seen = deposit(gradient, facts_.weight / facts_.loss_scale, bins_[parameter], sum);
  amax_[parameter] = std::max(amax_[parameter], seen.amax);
  seen_[parameter] += seen.nonfinite;
  fits_ = fits_ && seen.fits;
  has_deposit_[parameter] = true;
  grad.reset();  // the next micro-batch starts from nothing
}

void ExactReduction::complete(std::size_t parameter) {
  if (!has_deposit_[parameter]) {
    const std::span<double> sum = accumulator(parameter);
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  exchange_->counts()[parameter] = has_deposit_[parameter] ? 1 : 0;
}

void ExactReduction::end() {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (queue_.expects(p) && parameters_[p].grad().defined()) add(p);
  }
  is_open_ = false;
  if (facts_.which == MicroBatch::last) flush();
}

void ExactReduction::flush() {
  queue_.flush(*exchange_, [this](std::size_t parameter) { complete(parameter); });
}

StepBallot ExactReduction::merge(StepBallot mine, const std::function<void()>& pump) {
  nonfinite_ = std::exchange(seen_, std::vector<std::int64_t>(seen_.size()));
  const bool is_bad = std::any_of(nonfinite_.begin(), nonfinite_.end(),
                                  [](std::int64_t count) { return count > 0; });
  mine.overflow_ranks = is_bad ? 1 : 0;
  mine.repeat_max = fits_ ? 0 : 1;
  std::copy(amax_.begin(), amax_.end(), exchange_->magnitudes().begin());
  exchange_->counts()[parameters_.size()] = static_cast<float>(micro_batches_);
  StepBallot merged = exchange_->merge(mine, pump);
  if (merged.overflow_ranks == 0 && merged.nonfinite_ranks == 0) {
    if (!has_room()) merged.repeat_max = 1;
    learn_bins();
  } else {
    merged.repeat_max = 0;  // the step is skipped
  }
  queue_.reset();
  has_deposit_.assign(has_deposit_.size(), false);
  std::fill(amax_.begin(), amax_.end(), 0.0);
  micro_batches_ = 0;
  fits_ = true;
  return merged;
}

std::uint64_t ExactReduction::deposits_of_all() const {
  return static_cast<std::uint64_t>(exchange_->counts()[parameters_.size()]);
}

bool ExactReduction::has_room() const {
  return std::all_of(bins_.begin(), bins_.end(), [this](const ExactBin& bin) {
    return deposits_of_all() <= std::uint64_t{1} << bin.count_bits;
  });
}

void ExactReduction::learn_bins() {
  const std::uint64_t deposits = std::max<std::uint64_t>(1, deposits_of_all());
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    bins_[p] = next_bin(bins_[p], exchange_->magnitudes()[p], deposits);
  }
}

double ExactReduction::hand_back(double total, double) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (queue_.place(p).bucket == BucketPlace::kNowhere) continue;
    if (exchange_->counts()[p] == 0) {
      parameters_[p].mutable_grad().reset();
      continue;
    }
    if (!averages_[p].defined()) averages_[p] = at::empty_like(parameters_[p]).detach();
    withdraw(accumulator(p), total, averages_[p]);
    parameters_[p].mutable_grad() = averages_[p];
    averages.push_back(averages_[p]);
  }
  return l2_norm(averages);
}

}  // namespace cox::detail
