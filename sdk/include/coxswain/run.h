// run(block, f, inputs...) calls f(module, inputs...) as a block and returns exactly what f
// returns, bit for bit. This is where precision, memory actions and measurements meet the forward
// pass; while no session is attached it costs one branch. A memory action changes no bit of any
// result, gradient, buffer or random state.
//
//   auto y = cox::run(layer, &GptLayerImpl::forward, x);
//   auto y = cox::run(
//       layer, [](GptLayerImpl& impl, const at::Tensor& in) { return impl.forward(in); }, x);
//
// f may run again after the forward pass has returned, so `run` keeps copies of all it needs:
// - f has no captures (a lambda without any, a function, a member function), or is cox::owned(f);
//   its first parameter is the module as Impl& or as its holder;
// - at::Tensor, std::optional, std::vector and std::tuple of tensors are inputs; any other argument
//   is copied, so pointers, references and views into other memory are refused; f receives all as
//   const;
// - f returns tensors: at::Tensor, or std::optional, std::vector, std::tuple of them;
// - where the plan gives the block a number format, f runs under it, and results are as wide as the
//   inputs;
// - a second run is compared with the first once, bit for bit, and puts back buffers and random
//   state; other side effects of f (counters of its own, files, prints) happen again. It ends with
//   an exception of ours that must be able to leave f: what f calls must not be noexcept.
// What f throws passes through unchanged. Called by the thread that trains; does not communicate.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "coxswain/block.h"
#include "coxswain/detail/attended_call.h"
#include "coxswain/detail/rerun.h"
#include "coxswain/detail/run_contract.h"
#include "coxswain/owned.h"

namespace cox {
namespace detail {

template <class Holder, class F, class... Inputs>
auto call_block(const Block<Holder>& block, const F& function, const Inputs&... inputs) {
  using Impl = typename Block<Holder>::Impl;
  if constexpr (std::is_invocable_v<const F&, Impl&, const Inputs&...>) {
    check_result<std::invoke_result_t<const F&, Impl&, const Inputs&...>>();
    return std::invoke(function, *block, inputs...);
  } else {
    static_assert(std::is_invocable_v<const F&, Holder&, const Inputs&...>,
                  "cox::run: f must be callable as f(Impl&, const Inputs&...) or "
                  "f(Holder, const Inputs&...)");
    check_result<std::invoke_result_t<const F&, Holder&, const Inputs&...>>();
    Holder holder = block.holder();
    return std::invoke(function, holder, inputs...);
  }
}

// Keeps the call, so that it can be made again later.
template <class Holder, class F, class... Inputs>
std::unique_ptr<Rerun> keep_call(const Block<Holder>& block, const F& function,
                                 const Inputs&... inputs) {
  using Impl = typename Block<Holder>::Impl;
  using Function = std::decay_t<F>;
  const auto again = [block, function = Function(function)](const KeptType<Inputs>&... kept) {
    return call_block(block, function, kept...);
  };
  constexpr bool kMayStop = !std::is_nothrow_invocable_v<const F&, Impl&, const Inputs&...> &&
                            !std::is_nothrow_invocable_v<const F&, Holder&, const Inputs&...>;
  return std::make_unique<KeptCall<std::decay_t<decltype(again)>, KeptType<Inputs>...>>(
      again, kMayStop, inputs...);
}

template <class... Inputs>
bool has_too_narrow(const std::shared_ptr<BlockGate>& gate, const Inputs&... inputs) {
  bool found = false;
  [[maybe_unused]] const auto look = [&](const at::Tensor& tensor) {
    found = found || is_too_narrow(gate, tensor);
  };
  (for_each_tensor(inputs, look), ...);
  return found;
}

template <class T>
decltype(auto) widened(const std::shared_ptr<BlockGate>& gate, const T& input) {
  if constexpr (kTensors<T>) {
    return map_tensors(input, [&](const at::Tensor& t) { return widened_for(gate, t); });
  } else {
    return (input);
  }
}

// Makes a call that is measured, steered or watched.
template <class Holder, class F, class... Inputs>
auto attended_call(const Block<Holder>& block, const F& function, const Inputs&... inputs) {
  AttendedCall call(block.gate());
  (for_each_tensor(inputs, [&](const at::Tensor& tensor) { call.input(tensor); }), ...);
  call.begin(call.runs_again() ? keep_call(block, function, inputs...) : nullptr);
  auto outputs = call_block(block, function, inputs...);
  call.end();
  outputs = map_tensors(std::move(outputs),
                        [&](const at::Tensor& tensor) { return call.output(tensor); });
  call.finish();
  return outputs;
}

}  // namespace detail

template <class Holder, class F, class... Inputs>
[[nodiscard]] auto run(const Block<Holder>& block, const F& f, const Inputs&... inputs) {
  detail::check_function<F>();
  (detail::check_input<Inputs>(), ...);
  const auto& function = detail::unwrap_owned(f);
  if (!block) detail::throw_empty_block();
  if (!block.gate()->active) return detail::call_block(block, function, inputs...);
  if (!detail::has_too_narrow(block.gate(), inputs...)) {
    return detail::attended_call(block, function, inputs...);
  }
  return detail::attended_call(block, function, detail::widened(block.gate(), inputs)...);
}

}  // namespace cox
