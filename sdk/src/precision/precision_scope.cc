#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <string>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "sdk/src/precision/fp8_mark.h"

namespace cox {
namespace detail {
namespace {

bool& mark_of(c10::DeviceType device) {
  thread_local std::array<bool, 2> marks{};
  return marks[device == c10::DeviceType::CUDA ? 1 : 0];
}

}  // namespace

bool fp8_asked(c10::DeviceType device) {
  return mark_of(device);
}
void ask_fp8(c10::DeviceType device, bool asked) {
  mark_of(device) = asked;
}

}  // namespace detail

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

}  // namespace

PrecisionScope::PrecisionScope(at::DeviceType device, Precision format)
    : device_(checked(device)),
      type_before_(at::autocast::get_autocast_dtype(device)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      was_fp8_(detail::fp8_asked(device)),
      had_cache_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(false);
  if (format != Precision::fp32) {
    at::autocast::set_autocast_dtype(device_, autocast_type(format));
  }
  at::autocast::set_autocast_enabled(device_, format != Precision::fp32);
  detail::ask_fp8(device_, format == Precision::fp8);
}

PrecisionScope::~PrecisionScope() {
  detail::ask_fp8(device_, was_fp8_);
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
  if (now.type == at::kBFloat16 && detail::fp8_asked(device)) now.precision = Precision::fp8;
  return now;
}

}  // namespace cox
