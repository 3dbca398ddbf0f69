// Reduction: a rule that combines two equally long arrays of elements into one. A plain function
// pointer, so that every transport can reduce every value type with a merge. Pure.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace cox::transport {

struct Reduction {
  std::size_t element_bytes = 0;
  // Sets into[i] = into[i] (+) from[i] for `count` elements. Arrays are aligned for the element
  // type and do not overlap.
  void (*apply)(std::byte* into, const std::byte* from, std::size_t count) = nullptr;
};

Reduction sum_f32();
Reduction sum_f64();
Reduction sum_u64();
Reduction min_u64();
Reduction max_u64();
Reduction max_f64();  // a NaN on any rank gives NaN

// Returns the reduction of a value type T with `void merge_into(T&, const T&)`, such as StepBallot.
// The function is found by argument-dependent lookup.
template <class T>
Reduction merging() {
  static_assert(std::is_trivially_copyable_v<T>);
  return {sizeof(T), [](std::byte* into, const std::byte* from, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) {
              T a, b;
              std::memcpy(&a, into + i * sizeof(T), sizeof(T));
              std::memcpy(&b, from + i * sizeof(T), sizeof(T));
              merge_into(a, b);
              std::memcpy(into + i * sizeof(T), &a, sizeof(T));
            }
          }};
}

}  // namespace cox::transport
