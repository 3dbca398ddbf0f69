#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <string>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "sdk/src/precision/execution_state.h"

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
    : before_(detail::to_bits(detail::attention_flags())) {
  detail::put_in_force(only(backend, detail::attention_flags()));
}

AttentionScope::~AttentionScope() {
  detail::put_in_force(detail::flags_from_bits(before_));
}

}  // namespace cox
