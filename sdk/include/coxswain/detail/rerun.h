// Rerun: a call of a block's function that can be made again during the backward pass. It owns
// copies of the function and of all arguments; tensors are kept without their history and handed
// out anew each time, requiring gradients where they did. Made by cox::run and cox::tile, owned by
// the saved tensors that depend on it.
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
  // Whether an exception of ours may leave the function early; not through one that is noexcept.
  virtual bool may_stop() const = 0;
};

// The same data without its history; requires gradients where `tensor` does.
at::Tensor without_history(const at::Tensor& tensor);

// What a copy of an argument is kept as. An array can only be a string literal (run_contract.h).
template <class T>
using KeptType = std::conditional_t<std::is_array_v<T>, const char*, std::decay_t<T>>;

// Copies of arguments, tensors without their history.
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

// Call: invoked with the arguments; what it returns is dropped.
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
