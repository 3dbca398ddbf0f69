#include "coxswain/precision.h"

#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/torch.h>

#include <bit>
#include <functional>

#include "coxswain/error.h"
#include "sdk/src/precision/execution_state.h"
#include "sdk/src/precision/fp8_tensors.h"

namespace cox {
namespace {

at::DeviceType checked(at::DeviceType device) {
  if (device == at::kCPU || device == at::kCUDA) return device;
  throw Error(invalid_argument("precision: expected a CPU or CUDA device, found " +
                               c10::DeviceTypeName(device, true) +
                               "; formats of other devices are not steered"));
}

at::ScalarType autocast_type(Precision format) {
  return format == Precision::fp16 ? at::kHalf : at::kBFloat16;
}

detail::AttentionFlags only(AttentionBackend backend, const detail::AttentionFlags& before) {
  if (backend == AttentionBackend::any) return {.flash3 = before.flash3};
  return {.flash = backend == AttentionBackend::flash,
          .flash3 = backend == AttentionBackend::flash && before.flash3,
          .efficient = backend == AttentionBackend::memory_efficient,
          .math = backend == AttentionBackend::math,
          .cudnn = false,
          .overrideable = false};
}

bool has_device(at::DeviceType device) {
  return device == at::kCPU || (device == at::kCUDA && at::hasCUDA());
}

// Returns numbers like randn's, without a generator.
at::Tensor numbers(at::IntArrayRef shape, at::DeviceType device) {
  at::Tensor out = at::empty(shape, at::TensorOptions(device).dtype(at::kFloat));
  out.copy_(at::linspace(-1, 1, out.numel()).mul_(37).sin_().view(shape));
  return out.requires_grad_();
}

struct Operation {
  const char* name;
  std::vector<std::vector<std::int64_t>> inputs;  // shapes
  std::function<at::Tensor(const std::vector<at::Tensor>&)> compute;
};

using Inputs = std::vector<at::Tensor>;

at::Tensor some_indices(const at::Tensor& beside) {
  return at::arange(8, beside.options().dtype(at::kLong).requires_grad(false));
}

std::vector<Operation> operations() {
  return {
      {"linear", {{16, 32}, {16, 32}}, [](const Inputs& in) { return at::linear(in[0], in[1]); }},
      {"matmul",
       {{2, 16, 32}, {32, 16}},
       [](const Inputs& in) { return at::matmul(in[0], in[1]); }},
      {"layer_norm",
       {{8, 16}, {16, 32}, {32}},
       [](const Inputs& in) { return at::layer_norm(at::mm(in[0], in[1]), {32}, in[2]); }},
      {"softmax",
       {{8, 16}, {16, 32}},
       [](const Inputs& in) { return at::softmax(at::mm(in[0], in[1]), -1); }},
      {"gelu",
       {{8, 16}, {16, 32}},
       [](const Inputs& in) { return at::gelu(at::mm(in[0], in[1])); }},
      {"conv2d",
       {{2, 4, 8, 8}, {8, 4, 3, 3}},
       [](const Inputs& in) { return at::conv2d(in[0], in[1]); }},
      {"scaled_dot_product_attention",
       {{2, 2, 8, 16}, {2, 2, 8, 16}, {2, 2, 8, 16}},
       [](const Inputs& in) { return at::scaled_dot_product_attention(in[0], in[1], in[2]); }},
      {"embedding",
       {{8, 16}, {16, 16}},
       [](const Inputs& in) { return at::mm(at::embedding(in[0], some_indices(in[0])), in[1]); }},
      {"cross_entropy",
       {{8, 16}, {16, 32}},
       [](const Inputs& in) {
         return at::cross_entropy_loss(at::mm(in[0], in[1]), some_indices(in[0]));
       }},
  };
}

std::string error_of(const Operation& operation, Precision format, at::DeviceType device) {
  try {
    const at::AutoGradMode with_gradients(true);
    Inputs inputs;
    for (const auto& shape : operation.inputs) inputs.push_back(numbers(shape, device));
    at::Tensor out;
    {
      const PrecisionScope scope(device, format);
      out = operation.compute(inputs);
    }
    const auto gradients = torch::autograd::grad({out.to(at::kFloat).pow(2).sum()}, inputs);
    bool finite = at::isfinite(out).all().item<bool>();
    for (const at::Tensor& gradient : gradients) {
      finite = finite && at::isfinite(gradient).all().item<bool>();
    }
    return finite ? "" : "gave values that are not finite";
  } catch (const c10::Error& error) {
    return detail::first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return detail::first_line(error.what());
  }
}

}  // namespace

PrecisionScope::PrecisionScope(at::DeviceType device, Precision format)
    : device_(checked(device)),
      type_before_(at::autocast::get_autocast_dtype(device)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_fp8_(detail::fp8_mark(device)),
      had_cache_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(false);
  if (format != Precision::fp32) {
    at::autocast::set_autocast_dtype(device_, autocast_type(format));
  }
  at::autocast::set_autocast_enabled(device_, format != Precision::fp32);
  detail::fp8_mark(device_) = format == Precision::fp8;
}

PrecisionScope::~PrecisionScope() {
  detail::fp8_mark(device_) = was_fp8_;
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  at::autocast::set_autocast_cache_enabled(had_cache_);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

FormatInForce current_format(at::DeviceType device) {
  FormatInForce now{.device = checked(device),
                    .type = c10::get_default_dtype_as_scalartype(),
                    .enabled = at::autocast::is_autocast_enabled(device)};
  if (!now.enabled) return now;
  now.type = at::autocast::get_autocast_dtype(device);
  now.precision = now.type == at::kHalf ? Precision::fp16 : Precision::bf16;
  if (now.type == at::kBFloat16 && detail::fp8_mark(device)) now.precision = Precision::fp8;
  return now;
}

AttentionScope::AttentionScope(AttentionBackend backend)
    : before_(std::bit_cast<Flags>(detail::attention_flags())) {
  detail::put_in_force(only(backend, detail::attention_flags()));
}

AttentionScope::~AttentionScope() {
  detail::put_in_force(std::bit_cast<detail::AttentionFlags>(before_));
}

std::vector<FormatTrial> try_format(Precision format, at::DeviceType device) {
  std::vector<FormatTrial> trials;
  if (!has_device(device)) return trials;
  for (const Operation& operation : operations()) {
    trials.push_back({operation.name, error_of(operation, format, device)});
  }
  return trials;
}

Status can_run(Precision format, at::DeviceType device) {
  const std::string name = c10::DeviceTypeName(device, true);
  const std::string what = "precision " + std::string(to_string(format)) + " on " + name + ": ";
  if (device != at::kCPU && device != at::kCUDA) {
    return invalid_argument(what + "expected a CPU or CUDA device, found " + name +
                            "; formats of other devices are not steered");
  }
  if (!has_device(device)) {
    return unavailable(what + "expected a " + name +
                       " device, found none that torch can use; run on the CPU, or on a machine "
                       "with such a device and a torch built for it");
  }
  std::string failed;
  for (const FormatTrial& trial : try_format(format, device)) {
    if (trial.error.empty()) continue;
    failed += (failed.empty() ? "" : "; ") + trial.operation + " (" + trial.error + ")";
  }
  if (failed.empty()) return ok_status();
  return failed_precondition(what + "expected all operations of the trial to run, found failing: " +
                             failed + "; choose another format, fp32 always runs");
}

PrecisionSet runnable_formats(at::DeviceType device) {
  PrecisionSet set = 0;
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    const auto format = static_cast<Precision>(p);
    if (can_run(format, device).ok()) set = static_cast<PrecisionSet>(set | only(format));
  }
  return set;
}

bool is_emulated(Precision format, at::DeviceType device) {
  if (format == Precision::fp8) return !detail::has_fp8_hardware(device);
  // cuDNN's answer reveals whether the compute capability is at least 8.0, which bf16 units need
  // too.
  if (format == Precision::bf16 && device == at::kCUDA && at::hasCUDA()) {
    return !at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
  }
  return false;
}

}  // namespace cox
