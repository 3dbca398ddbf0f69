#include "sdk/src/precision/trial_pass.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <string>
#include <unordered_map>

#include "coxswain/error.h"
#include "sdk/src/device/bits_hash.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/precision/execution_state.h"

namespace cox::detail {
namespace {

// Restores the buffers that a function itself edits (statistics, counters). Works below autograd,
// so that no version counter changes.
class BufferScope {
 public:
  explicit BufferScope(const std::vector<at::Tensor>& buffers) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : buffers) {
      if (buffer.defined()) kept_.push_back({buffer, buffer.detach().clone()});
    }
  }
  ~BufferScope() {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (Kept& kept : kept_) kept.buffer.copy_(kept.before);
  }
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::vector<Kept> kept_;
};

at::Tensor on_host(const at::Tensor& gradient) {
  return dense(gradient).detach().cpu().contiguous();
}

std::int64_t sample_stride(const at::Tensor& values) {
  constexpr std::int64_t kSampled = 65536;
  return std::max<std::int64_t>(1, values.numel() / kSampled);
}

// Reads elements in place: a trial counts memory.
double sampled_norm(const at::Tensor& values) {
  const std::int64_t stride = sample_stride(values);
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "norm", [&] {
    const scalar_t* data = values.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < values.numel(); i += stride)
      sum += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  });
  return std::sqrt(sum);
}

// Reads on the device, because a gradient may be large and the way to the host slow. Uses little
// memory.
GradientPrint print_on_device(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kElementsAtOnce = 1L << 16;
  const at::Tensor flat = gradient.detach().reshape({-1});
  const at::Tensor sample = flat.slice(0, 0, flat.numel(), sample_stride(flat));
  const at::Tensor norm = at::linalg_vector_norm(sample, 2, {}, false, at::kDouble);
  const at::Tensor bits = bits_hash_on(flat.device(), {{flat}}, kElementsAtOnce);
  const auto size = static_cast<std::uint64_t>(flat.numel());  // so that zeros are not "none"
  return {static_cast<std::uint64_t>(bits.item<std::int64_t>()) + size, norm.item<double>()};
}

// Permitted distance between the norms of runs of one step: a multiple of the distance between
// equal runs, and a minimum.
constexpr double kSpreads = 8, kLeastApart = 1e-3;

double apart(const GradientPrint& one, const GradientPrint& other) {
  const double larger = std::max(one.norm, other.norm);
  return larger > 0 ? std::abs(one.norm - other.norm) / larger : 0;
}

}  // namespace

GradientPrint print_of(const at::Tensor& gradient) {
  const bool is_there = !gradient.is_cpu() && gradient.layout() == at::kStrided &&
                        c10::isFloatingType(gradient.scalar_type()) && gradient.numel() > 0;
  if (is_there) return print_on_device(gradient);
  const at::Tensor values = on_host(gradient);
  return {bits_hash(values), c10::isFloatingType(values.scalar_type()) ? sampled_norm(values) : 0};
}

void GradientSpread::note(const GradientPrints& one, const GradientPrints& other) {
  if (one.size() != other.size()) return;
  spread_.resize(std::max(spread_.size(), one.size()), -1);
  for (std::size_t p = 0; p < one.size(); ++p) {
    if (one[p].bits != other[p].bits) spread_[p] = std::max(spread_[p], apart(one[p], other[p]));
  }
}

std::size_t GradientSpread::unsteady() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(spread_, [](double spread) { return spread >= 0; }));
}

std::optional<std::size_t> GradientSpread::first_unlike(const GradientPrints& one,
                                                        const GradientPrints& other) const {
  const double widest = spread_.empty() ? -1 : std::ranges::max(spread_);
  if (one.size() != other.size()) return std::min(one.size(), other.size());
  for (std::size_t p = 0; p < one.size(); ++p) {
    if (one[p].bits == other[p].bits) continue;
    const double spread = p < spread_.size() && spread_[p] >= 0 ? spread_[p] : widest;
    // Written so that NaN fails the comparison.
    if (spread < 0 || !(apart(one[p], other[p]) <= std::max(kLeastApart, kSpreads * spread)))
      return p;
  }
  return std::nullopt;
}

TrialStep::TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss,
                     std::vector<at::Tensor> released)
    : model_(model), loss_(std::move(loss)), released_(std::move(released)) {}

Status TrialStep::run() {
  const std::vector<at::Tensor> parameters = model_.parameters();
  gradients_.assign(parameters.size(), {});
  std::unordered_map<const void*, std::size_t> places;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    places.emplace(parameters[p].unsafeGetTensorImpl(), p);
  }
  // For a model on a device, autograd calls drop in the device's thread. Each entry has one caller.
  const auto drop = [&](std::size_t r) {
    const auto place = places.find(released_[r].unsafeGetTensorImpl());
    if (place != places.end()) take_gradient(place->second, released_[r]);
  };
  Status status;
  {
    const ReadyHooks hooks(released_, drop);
    status = run_once();
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) take_gradient(p, parameters[p]);
  return status;
}

Status TrialStep::run_once() {
  const ExecutionState state = capture_state(model_);
  try {
    const StateScope undone(state);
    const BufferScope put_back(model_.buffers());
    const at::Tensor loss = loss_();
    if (loss.defined()) loss.backward();
  } catch (const Error& error) {
    return error.status();
  } catch (const std::exception& error) {
    return internal_error(first_line(error.what()));
  }
  return ok_status();
}

void TrialStep::take_gradient(std::size_t place, const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  const GradientPrint print = print_of(gradient);
  GradientPrint& known = gradients_[place];
  known = {std::rotl(known.bits, 1) ^ print.bits, std::hypot(known.norm, print.norm)};
  gradient.reset();
}

std::vector<std::string> TrialStep::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& item : model_.named_parameters()) names.push_back(item.key());
  return names;
}

}  // namespace cox::detail
