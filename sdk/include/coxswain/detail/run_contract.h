// The compile-time half of the contract of cox::run. check_function(), check_input() and
// check_result() refuse the functions, arguments and results that it cannot take, each with a
// sentence; for_each_tensor() and map_tensors() walk over the tensors inside an argument or a
// result. Pure templates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "coxswain/owned.h"

namespace cox::detail {

template <class T>
inline constexpr bool kTensors = std::is_same_v<T, at::Tensor>;
template <class T>
inline constexpr bool kTensors<std::optional<T>> = kTensors<T>;
template <class T>
inline constexpr bool kTensors<std::vector<T>> = kTensors<T>;
template <class... Ts>
inline constexpr bool kTensors<std::tuple<Ts...>> = (kTensors<Ts> && ...);

// Types whose copies still point into somebody else's memory. A char array is a string literal.
template <class T>
inline constexpr bool kBorrows =
    std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>;
template <class T, std::size_t N>
inline constexpr bool kBorrows<T[N]> = !std::is_same_v<T, char>;
template <class T>
inline constexpr bool kBorrows<std::reference_wrapper<T>> = true;
template <class T>
inline constexpr bool kBorrows<c10::ArrayRef<T>> = true;
template <class T, std::size_t N>
inline constexpr bool kBorrows<std::span<T, N>> = true;
template <class C, class T>
inline constexpr bool kBorrows<std::basic_string_view<C, T>> = true;

template <class F>
inline constexpr bool kRunsAgain =
    (std::is_class_v<F> && std::is_empty_v<F>) || std::is_member_function_pointer_v<F> ||
    std::is_function_v<F> || std::is_function_v<std::remove_pointer_t<F>>;
template <class F>
inline constexpr bool kRunsAgain<Owned<F>> = true;

template <class F>
constexpr void check_function() {
  static_assert(
      kRunsAgain<F>,
      "cox::run: f may run again after this scope has ended, so it must not capture: pass "
      "what it needs as arguments, or wrap it as cox::owned(f), capturing by value");
}

template <class T>
constexpr void check_input() {
  static_assert(std::is_copy_constructible_v<std::decay_t<T>>,
                "cox::run: an argument is kept for running f again, so it must be copyable");
  static_assert(!kBorrows<T>,
                "cox::run: a pointer, reference or view may dangle when f runs again: pass a value "
                "(std::string, std::vector, a tensor)");
}

template <class R>
constexpr void check_result() {
  static_assert(!std::is_reference_v<R>, "cox::run: f must return by value");
  static_assert(
      kTensors<R>,
      "cox::run: f must return at::Tensor, or std::optional, std::vector or std::tuple of "
      "them");
}

template <class F>
const F& unwrap_owned(const F& function) {
  return function;
}
template <class F>
const F& unwrap_owned(const Owned<F>& owned) {
  return owned.function;
}

// Calls visit(tensor) for each tensor in `value`, in order. Other kinds of values hold none.
template <class T, class Visit>
void for_each_tensor(const T&, const Visit&) {}
template <class Visit>
void for_each_tensor(const at::Tensor& tensor, const Visit& visit);
template <class T, class Visit>
void for_each_tensor(const std::optional<T>& value, const Visit& visit);
template <class T, class Visit>
void for_each_tensor(const std::vector<T>& values, const Visit& visit);
template <class... Ts, class Visit>
void for_each_tensor(const std::tuple<Ts...>& values, const Visit& visit);

template <class Visit>
void for_each_tensor(const at::Tensor& tensor, const Visit& visit) {
  visit(tensor);
}
template <class T, class Visit>
void for_each_tensor(const std::optional<T>& value, const Visit& visit) {
  if (value) for_each_tensor(*value, visit);
}
template <class T, class Visit>
void for_each_tensor(const std::vector<T>& values, const Visit& visit) {
  if constexpr (kTensors<T>) {
    for (const T& value : values) for_each_tensor(value, visit);
  }
}
template <class... Ts, class Visit>
void for_each_tensor(const std::tuple<Ts...>& values, const Visit& visit) {
  std::apply([&](const Ts&... value) { (for_each_tensor(value, visit), ...); }, values);
}

// Returns `value` with map(tensor) in place of every tensor.
template <class Map>
at::Tensor map_tensors(at::Tensor tensor, const Map& map) {
  return map(tensor);
}
template <class T, class Map>
std::optional<T> map_tensors(std::optional<T> value, const Map& map);
template <class T, class Map>
std::vector<T> map_tensors(std::vector<T> values, const Map& map);
template <class... Ts, class Map>
std::tuple<Ts...> map_tensors(std::tuple<Ts...> values, const Map& map);

template <class T, class Map>
std::optional<T> map_tensors(std::optional<T> value, const Map& map) {
  if (value) *value = map_tensors(std::move(*value), map);
  return value;
}
template <class T, class Map>
std::vector<T> map_tensors(std::vector<T> values, const Map& map) {
  for (T& value : values) value = map_tensors(std::move(value), map);
  return values;
}
template <class... Ts, class Map>
std::tuple<Ts...> map_tensors(std::tuple<Ts...> values, const Map& map) {
  std::apply([&](Ts&... value) { ((value = map_tensors(std::move(value), map)), ...); }, values);
  return values;
}

}  // namespace cox::detail
