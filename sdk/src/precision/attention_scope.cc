#include <ATen/Context.h>

#include "coxswain/precision.h"
#include "sdk/src/precision/attention_flags.h"

namespace cox {
namespace detail {

AttentionFlags attention_flags() {
  const at::Context& context = at::globalContext();
  return {context.userEnabledFlashSDP(),        context.userEnabledFA3SDP(),
          context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(),
          context.userEnabledCuDNNSDP(),        context.userEnabledOverrideableSDP()};
}

void put_in_force(const AttentionFlags& wanted) {
  if (wanted == attention_flags()) return;
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(wanted.flash);
  context.setSDPUseFA3(wanted.flash3);
  context.setSDPUseMemEfficient(wanted.efficient);
  context.setSDPUseMath(wanted.math);
  context.setSDPUseCuDNN(wanted.cudnn);
  context.setSDPUseOverrideable(wanted.overrideable);
}

std::uint8_t to_bits(const AttentionFlags& flags) {
  const bool all[] = {flags.flash, flags.flash3, flags.efficient,
                      flags.math,  flags.cudnn,  flags.overrideable};
  unsigned bits = 0;
  for (unsigned i = 0; i < 6; ++i) bits |= all[i] ? 1u << i : 0u;
  return static_cast<std::uint8_t>(bits);
}

AttentionFlags flags_from_bits(std::uint8_t bits) {
  const auto bit = [bits](unsigned i) { return (bits >> i & 1u) != 0; };
  return {bit(0), bit(1), bit(2), bit(3), bit(4), bit(5)};
}

}  // namespace detail

namespace {

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

AttentionScope::AttentionScope(AttentionBackend backend)
    : before_(detail::to_bits(detail::attention_flags())) {
  detail::put_in_force(only(backend, detail::attention_flags()));
}

AttentionScope::~AttentionScope() {
  detail::put_in_force(detail::flags_from_bits(before_));
}

}  // namespace cox
