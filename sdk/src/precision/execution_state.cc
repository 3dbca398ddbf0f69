#include "sdk/src/precision/execution_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>

namespace cox::detail {
namespace {

ExecutionState::Autocast autocast_now(at::DeviceType device) {
  return {device, at::autocast::is_autocast_enabled(device),
          at::autocast::get_autocast_dtype(device), fp8_mark(device)};
}

ExecutionState::Generator generator_now(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return {generator, generator.get_state()};
}

ExecutionState state_of(const std::vector<ExecutionState::Generator>& generators) {
  ExecutionState state;
  for (const auto& [generator, unused] : generators) {
    state.generators.push_back(generator_now(generator));
  }
  state.autocast = {autocast_now(at::kCPU), autocast_now(at::kCUDA)};
  state.has_cast_cache = at::autocast::is_autocast_cache_enabled();
  state.attention = attention_flags();
  state.default_type = c10::get_default_dtype();
  return state;
}

void put_in_force(const ExecutionState& state) {
  for (ExecutionState::Generator kept : state.generators) {
    const std::lock_guard lock(kept.generator.mutex());
    kept.generator.set_state(kept.state);
  }
  for (const ExecutionState::Autocast& autocast : state.autocast) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.is_enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.type);
    fp8_mark(autocast.device) = autocast.is_fp8;
  }
  at::autocast::set_autocast_cache_enabled(state.has_cast_cache);
  put_in_force(state.attention);
  if (state.default_type != c10::get_default_dtype()) c10::set_default_dtype(state.default_type);
}

}  // namespace

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

bool& fp8_mark(c10::DeviceType device) {
  thread_local std::array<bool, 2> marks{};
  return marks[device == c10::DeviceType::CUDA ? 1 : 0];
}

ExecutionState capture_state(std::span<const at::Device> devices) {
  std::vector<ExecutionState::Generator> generators;
  generators.push_back({at::globalContext().defaultGenerator(at::kCPU), {}});
  std::vector<at::Device> seen;
  for (const at::Device device : devices) {
    if (!device.is_cuda() || std::ranges::find(seen, device) != seen.end()) continue;
    seen.push_back(device);
    generators.push_back({at::globalContext().defaultGenerator(device), {}});
  }
  return state_of(generators);
}

ExecutionState capture_state(const torch::nn::Module& model) {
  std::vector<at::Device> devices;
  for (const at::Tensor& parameter : model.parameters()) devices.push_back(parameter.device());
  return capture_state(devices);
}

StateScope::StateScope(const ExecutionState& wanted)
    : before_(state_of(wanted.generators)), with_gradients_(true) {
  put_in_force(wanted);
}

StateScope::~StateScope() {
  put_in_force(before_);
}

}  // namespace cox::detail
