// The fake's reductions: add the parts of all ranks in ascending ranks, in the precision of the
// element type. Pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "coordinator/transport/nccl/abi.h"

namespace cox::test {

using transport::nccl::Operator;
using transport::nccl::Type;

struct Bfloat {
  std::uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  explicit Bfloat(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    bits = static_cast<std::uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
  }
  Bfloat() = default;
};

// clang 14 has no type for half precision.
struct Half {
  std::uint16_t bits;
  explicit operator float() const {
    const float magnitude =
        std::bit_cast<float>(std::uint32_t{bits & 0x7FFFu} << 13) * 0x1p112F;  // exact
    auto word = std::bit_cast<std::uint32_t>(magnitude);
    if ((bits & 0x7C00) == 0x7C00) word |= 0x7F800000;
    return std::bit_cast<float>(word | std::uint32_t{bits & 0x8000u} << 16);
  }
  // Rounds to the nearest, ties to even.
  explicit Half(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(word >> 16 & 0x8000);
    const std::uint32_t magnitude = word & 0x7FFFFFFF;
    std::uint32_t half = 0;
    if (magnitude > 0x7F800000) {
      half = 0x7E00;
    } else if (magnitude >= 0x477FF000) {  // 65520, the least value that rounds to infinity
      half = 0x7C00;
    } else if (magnitude < 0x38800000) {  // rounds at the last bit of a subnormal
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
    } else {
      half = (magnitude + 0xC8000FFF + (magnitude >> 13 & 1)) >> 13;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  Half() = default;
};

template <class T>
T add(T a, T b) {
  return static_cast<T>(a + b);
}
template <>
inline Bfloat add(Bfloat a, Bfloat b) {
  return Bfloat(static_cast<float>(a) + static_cast<float>(b));
}

template <>
inline Half add(Half a, Half b) {
  return Half(static_cast<float>(a) + static_cast<float>(b));
}

template <class T>
T larger(T a, T b) {
  return static_cast<double>(a) < static_cast<double>(b) ? b : a;
}
template <>
inline Bfloat larger(Bfloat a, Bfloat b) {
  return static_cast<float>(a) < static_cast<float>(b) ? b : a;
}
template <>
inline Half larger(Half a, Half b) {
  return static_cast<float>(a) < static_cast<float>(b) ? b : a;
}

// into[i] = into[i] (+) from[i].
template <class T>
void reduce(std::byte* into, const std::byte* from, std::size_t count, Operator operation) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = operation == Operator::max ? larger(a, b) : add(a, b);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

// Calls `use` with a value of the C++ type of `type`.
template <class Use>
void with_type(Type type, Use&& use) {
  switch (type) {
    case Type::int8:
      return use(std::int8_t{});
    case Type::uint8:
      return use(std::uint8_t{});
    case Type::int32:
      return use(std::int32_t{});
    case Type::uint32:
      return use(std::uint32_t{});
    case Type::int64:
      return use(std::int64_t{});
    case Type::uint64:
      return use(std::uint64_t{});
    case Type::float16:
      return use(Half{});
    case Type::float32:
      return use(float{});
    case Type::float64:
      return use(double{});
    case Type::bfloat16:
      return use(Bfloat{});
  }
}

}  // namespace cox::test
