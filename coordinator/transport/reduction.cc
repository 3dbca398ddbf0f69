#include "coordinator/transport/reduction.h"

#include <algorithm>
#include <cstdint>

namespace cox::transport {
namespace {

// `Op` is the type of a lambda that captures nothing.
template <class T, class Op>
Reduction element_wise(Op) {
  return {sizeof(T), [](std::byte* into, const std::byte* from, std::size_t count) {
            T* __restrict a = reinterpret_cast<T*>(into);
            const T* __restrict b = reinterpret_cast<const T*>(from);
            for (std::size_t i = 0; i < count; ++i) a[i] = Op{}(a[i], b[i]);
          }};
}

template <class T>
Reduction sum() {
  return element_wise<T>([](T a, T b) { return a + b; });
}

}  // namespace

Reduction sum_f32() {
  return sum<float>();
}
Reduction sum_f64() {
  return sum<double>();
}
Reduction sum_u64() {
  return sum<std::uint64_t>();
}
Reduction min_u64() {
  return element_wise<std::uint64_t>([](auto a, auto b) { return std::min(a, b); });
}
Reduction max_u64() {
  return element_wise<std::uint64_t>([](auto a, auto b) { return std::max(a, b); });
}
Reduction max_f64() {
  return element_wise<double>([](double a, double b) { return a < b || b != b ? b : a; });
}

}  // namespace cox::transport
