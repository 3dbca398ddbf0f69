#include "coordinator/transport/reduction.h"

#include <algorithm>
#include <cstdint>

namespace cox::transport {
namespace {

template <class T>
struct Sum {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Min {
  T operator()(T a, T b) const { return std::min(a, b); }
};
template <class T>
struct Max {
  T operator()(T a, T b) const { return std::max(a, b); }
};
template <class T>
struct MaxOrNan {
  T operator()(T a, T b) const { return a < b || b != b ? b : a; }
};

template <class T, class Op>
Reduction element_wise() {
  return {sizeof(T), [](std::byte* into, const std::byte* from, std::size_t count) {
            T* __restrict a = reinterpret_cast<T*>(into);
            const T* __restrict b = reinterpret_cast<const T*>(from);
            for (std::size_t i = 0; i < count; ++i) a[i] = Op{}(a[i], b[i]);
          }};
}

}  // namespace

Reduction sum_f32() {
  return element_wise<float, Sum<float>>();
}
Reduction sum_f64() {
  return element_wise<double, Sum<double>>();
}
Reduction sum_u64() {
  return element_wise<std::uint64_t, Sum<std::uint64_t>>();
}
Reduction min_u64() {
  return element_wise<std::uint64_t, Min<std::uint64_t>>();
}
Reduction max_u64() {
  return element_wise<std::uint64_t, Max<std::uint64_t>>();
}
Reduction max_f32() {
  return element_wise<float, MaxOrNan<float>>();
}
Reduction max_f64() {
  return element_wise<double, MaxOrNan<double>>();
}

}  // namespace cox::transport
