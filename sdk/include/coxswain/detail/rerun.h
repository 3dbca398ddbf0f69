// Rerun is a call of a block's function that can be made again during the backward pass. It owns
// copies of the function and of all arguments; it keeps tensors without their history and hands
// them out anew each time, requiring gradients where they did. cox::run and cox::tile make it; the
// saved tensors that depend on it own it. It runs on whatever thread runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "coxswain/detail/run_contract.h"

namespace cox::detail {

class Rerun {
 public:
  virtual ~Rerun() = default;
  virtual void run() const = 0;
  // Returns whether an exception of ours may leave the function early. It must not pass through a
  // function that is noexcept.
  virtual bool may_stop() const = 0;
};

// Returns the same data without its history; it requires gradients where `tensor` does.
inline at::Tensor without_history(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor alone = tensor.detach();
  if (tensor.requires_grad()) alone.requires_grad_(true);
  return alone;
}

// KeptType is the type of an argument's copy. An array can only be a string literal
// (run_contract.h).
template <class T>
using KeptType = std::conditional_t<std::is_array_v<T>, const char*, std::decay_t<T>>;

// Copies an argument; tensors inside lose their history.
template <class T>
T kept(const T& value) {
  return value;
}
inline at::Tensor kept(const at::Tensor& tensor) {
  return without_history(tensor);
}
template <class T>
std::optional<T> kept(const std::optional<T>& value);
template <class T>
std::vector<T> kept(const std::vector<T>& values);
template <class... Ts>
std::tuple<Ts...> kept(const std::tuple<Ts...>& values);

template <class T>
std::optional<T> kept(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return kept(*value);
}
template <class T>
std::vector<T> kept(const std::vector<T>& values) {
  if constexpr (kTensors<T>) {
    std::vector<T> copies;
    copies.reserve(values.size());
    for (const T& value : values) copies.push_back(kept(value));
    return copies;
  } else {
    return values;
  }
}
template <class... Ts>
std::tuple<Ts...> kept(const std::tuple<Ts...>& values) {
  return std::apply([](const Ts&... value) { return std::tuple<Ts...>(kept(value)...); }, values);
}

// KeptCall invokes a `Call` with copies of the arguments and drops its result.
template <class Call, class... Inputs>
class KeptCall final : public Rerun {
 public:
  KeptCall(Call call, bool may_stop, const Inputs&... inputs)
      : call_(std::move(call)), may_stop_(may_stop), inputs_(kept(inputs)...) {}

  void run() const override {
    std::apply([this](const auto&... input) { (void)call_(kept(input)...); }, inputs_);
  }
  bool may_stop() const override { return may_stop_; }

 private:
  mutable Call call_;
  bool may_stop_;
  std::tuple<Inputs...> inputs_;
};

}  // namespace cox::detail
