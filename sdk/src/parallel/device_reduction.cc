#include "sdk/src/parallel/device_reduction.h"

#include <c10/core/Event.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

class DeviceReduction final : public GradientReduction {
 public:
  DeviceReduction(const std::vector<at::Tensor>& parameters, GradientLayout layout,
                  std::unique_ptr<StepExchange> exchange, const transport::WaitPolicy& wait)
      : parameters_(parameters),
        layout_(std::move(layout)),
        exchange_(std::move(exchange)),
        wait_(wait),
        on_device_(parameters.size()),
        views_(parameters.size()),
        nonfinite_(parameters.size()) {
    const torch::NoGradGuard no_grad;
    // Autograd must not see views here: zero_grad() of torch::optim refuses to detach them.
    const at::AutoDispatchBelowADInplaceOrView untracked;
    for (std::size_t b = 0; b < layout_.buckets.size(); ++b) add_bucket(b);
  }

  void begin(const MicroBatchFacts& facts) override { facts_ = facts; }
  void end() override {
    if (facts_.which == MicroBatch::last) gather();
  }

  void flush() override {
    gather();
    for (std::size_t b = next_; b < buckets_.size(); ++b) {
      wait_for(buckets_[b]);
      send(b);
    }
    next_ = buckets_.size();
  }

  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    const bool is_bad =
        std::ranges::any_of(nonfinite_, [](std::int64_t count) { return count > 0; });
    mine.overflow_ranks = is_bad ? 1 : 0;
    const StepBallot merged = exchange_->merge(mine, pump);
    is_gathered_ = false;
    next_ = 0;
    facts_ = {};
    return merged;
  }

  double hand_back(double total, double loss_scale) override {
    const torch::NoGradGuard no_grad;
    const double norm = divide(total * loss_scale);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].host.copy_(exchange_->flat(b));
      buckets_[b].device.copy_(buckets_[b].host, /*non_blocking=*/true);
    }
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!on_device_[p].defined()) continue;
      at::Tensor& grad = parameters_[p].mutable_grad();
      grad = exchange_->counts()[p] == 0 ? at::Tensor() : as_gradient(p);
    }
    return norm;
  }

  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }
  std::span<const std::uint32_t> order() const override { return order_; }
  StepExchange* exchange() override { return exchange_.get(); }

 private:
  // The same numbers three times: this and exchange_->flat(), which ranks share.
  struct Bucket {
    at::Tensor device;
    at::Tensor host;  // pinned
    c10::Event came;  // `host` holds this rank's part
  };

  void add_bucket(std::size_t b) {
    const GradientBucket& laid = layout_.buckets[b];
    const at::Device device = parameters_[laid.parameters.front()].device();
    const auto options = exchange_->flat(b).options();
    buckets_.push_back({at::zeros({laid.elements}, options.device(device)),
                        at::zeros({laid.elements}, options).pin_memory(),
                        c10::Event(device.type())});
    for (const std::size_t p : laid.parameters) {
      on_device_[p] = part_of(buckets_[b].device, p);
      views_[p] = on_device_[p].view(parameters_[p].sizes());
    }
  }

  at::Tensor part_of(const at::Tensor& flat, std::size_t parameter) const {
    return flat.narrow(0, layout_.places[parameter].offset, parameters_[parameter].numel());
  }
  bool has_view(std::size_t p) const {
    return parameters_[p].scalar_type() == views_[p].scalar_type();
  }
  at::Tensor as_gradient(std::size_t p) const {
    return has_view(p) ? views_[p] : views_[p].to(parameters_[p].scalar_type());
  }

  // Puts this rank's gradients into the buckets and lets those set out, bucket by bucket.
  void gather() {
    if (std::exchange(is_gathered_, true)) return;
    const torch::NoGradGuard no_grad;
    order_.clear();
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      gather(layout_.buckets[b].parameters);
      Bucket& bucket = buckets_[b];
      bucket.host.copy_(bucket.device, /*non_blocking=*/true);
      bucket.came.record(c10::impl::VirtualGuardImpl(bucket.device.device().type())
                             .getStream(bucket.device.device()));
    }
  }

  void gather(const std::vector<std::size_t>& parameters) {
    std::vector<at::Tensor> to;
    std::vector<at::Tensor> from;
    std::vector<at::Tensor> missing;
    for (const std::size_t p : parameters) {
      at::Tensor& grad = parameters_[p].mutable_grad();
      exchange_->counts()[p] = grad.defined() ? 1 : 0;
      if (!grad.defined()) {
        missing.push_back(on_device_[p]);
        continue;
      }
      order_.push_back(static_cast<std::uint32_t>(p));
      to.push_back(views_[p]);
      from.push_back(grad.layout() == at::kStrided ? grad : grad.to_dense());
      if (has_view(p)) grad = views_[p];
    }
    if (!missing.empty()) at::_foreach_zero_(missing);
    if (to.empty()) return;
    at::_foreach_copy_(to, from, /*non_blocking=*/true);
    if (facts_.unit != 1) at::_foreach_mul_(to, facts_.unit);
  }

  void wait_for(const Bucket& bucket) {
    transport::Waiter waiter(wait_);
    while (!bucket.came.query()) require(waiter.pause(), "gradients from the device");
  }

  // Passes on what came, and counts what is not finite.
  void send(std::size_t b) {
    for (const std::size_t p : layout_.buckets[b].parameters) {
      const at::Tensor came = part_of(buckets_[b].host, p);
      const at::Tensor place = part_of(exchange_->flat(b), p);
      if (came.scalar_type() == at::kFloat) {
        nonfinite_[p] = copy_and_scan(came, floats_of(place), 1).nonfinite;
      } else {
        place.copy_(came);
        nonfinite_[p] = count_nonfinite(place);
      }
    }
    exchange_->start(b);
  }

  // Divides the sums in the exchange; returns the norm, in the parameters' order.
  double divide(double divisor) {
    double squares = 0;
    std::vector<at::Tensor> others;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!on_device_[p].defined() || exchange_->counts()[p] == 0) continue;
      at::Tensor place = part_of(exchange_->flat(layout_.places[p].bucket), p);
      if (place.scalar_type() == at::kFloat && has_exact_inverse(divisor)) {
        squares +=
            copy_and_scan(place, floats_of(place), static_cast<float>(1 / divisor)).squares;
      } else {
        place.div_(divisor);
        others.push_back(place);
      }
    }
    return others.empty() ? std::sqrt(squares) : std::hypot(std::sqrt(squares), l2_norm(others));
  }

  const std::vector<at::Tensor>& parameters_;
  const GradientLayout layout_;
  const std::unique_ptr<StepExchange> exchange_;
  const transport::WaitPolicy wait_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> on_device_;  // 1-D, of each parameter in its bucket
  std::vector<at::Tensor> views_;      // those in the parameters' shapes
  std::vector<std::int64_t> nonfinite_;
  std::vector<std::uint32_t> order_;
  MicroBatchFacts facts_;
  bool is_gathered_ = false;  // in the open step
  std::size_t next_ = 0;      // bucket to be passed on
};

}  // namespace

c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed) {
  std::optional<c10::Device> common;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!needed[p]) continue;
    if (common && *common != parameters[p].device()) return at::kCPU;
    common = parameters[p].device();
  }
  return common.value_or(at::kCPU);
}

std::unique_ptr<GradientReduction> make_device_reduction(const std::vector<at::Tensor>& parameters,
                                                         GradientLayout layout,
                                                         std::unique_ptr<StepExchange> exchange,
                                                         const transport::WaitPolicy& wait) {
  return std::make_unique<DeviceReduction>(parameters, std::move(layout), std::move(exchange),
                                           wait);
}

}  // namespace cox::detail
