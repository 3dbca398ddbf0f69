#include "sdk/src/parallel/exact_loops.h"

#include <algorithm>
#include <cmath>

#include "sdk/src/device/float_vectors.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kLanes = 8;

template <class From>
COX_INLINE void add_turn(const typename From::Value* values, double* accumulator, double weight,
                         double magic) {
  Floats floats;
  Doubles sum;
  From::load(values, floats);
  std::memcpy(&sum, accumulator, sizeof(sum));
  const Doubles product = __builtin_convertvector(floats, Doubles) * weight;
  sum += (product + magic) - magic;
  std::memcpy(accumulator, &sum, sizeof(sum));
}

template <class From>
COX_INLINE void add_turns(const typename From::Value* values, double* accumulator,
                          std::int64_t count, double weight, double magic) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    add_turn<From>(values + i, accumulator + i, weight, magic);
    add_turn<From>(values + i + kLanes, accumulator + i + kLanes, weight, magic);
    add_turn<From>(values + i + 2 * kLanes, accumulator + i + 2 * kLanes, weight, magic);
    add_turn<From>(values + i + 3 * kLanes, accumulator + i + 3 * kLanes, weight, magic);
  }
  for (; i < count; i += kLanes) add_turn<From>(values + i, accumulator + i, weight, magic);
}

COX_WIDEST_VECTORS void turns_fp32(const float* values, double* accumulator, std::int64_t count,
                                   double weight, double magic) {
  add_turns<FromFp32>(values, accumulator, count, weight, magic);
}
COX_WIDEST_VECTORS void turns_bf16(const std::uint16_t* values, double* accumulator,
                                   std::int64_t count, double weight, double magic) {
  add_turns<FromBf16>(values, accumulator, count, weight, magic);
}
COX_WIDEST_VECTORS void turns_fp16(const std::uint16_t* values, double* accumulator,
                                   std::int64_t count, double weight, double magic) {
  add_turns<FromFp16>(values, accumulator, count, weight, magic);
}

// Full turns by `loop`; what is left over as one more, in memory of its own.
template <class Value, class Loop>
void add(const Value* values, double* accumulator, std::int64_t count, ExactRounding rounding,
         const Loop& loop) {
  const std::int64_t left = count % kLanes;
  loop(values, accumulator, count - left, rounding.weight, rounding.magic);
  if (left == 0) return;
  Value rest[kLanes] = {};
  double sums[kLanes] = {};
  std::copy_n(values + (count - left), left, rest);
  std::copy_n(accumulator + (count - left), left, sums);
  loop(rest, sums, kLanes, rounding.weight, rounding.magic);
  std::copy_n(sums, left, accumulator + (count - left));
}

COX_WIDEST_VECTORS void divide_turns(const double* accumulator, float* to, std::int64_t count,
                                     double divisor) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    Doubles sum;
    std::memcpy(&sum, accumulator + i, sizeof(sum));
    const Floats quotient = __builtin_convertvector(sum / divisor, Floats);
    std::memcpy(to + i, &quotient, sizeof(quotient));
  }
}

}  // namespace

void add_fp32(const float* values, double* accumulator, std::int64_t count,
              ExactRounding rounding) {
  add(values, accumulator, count, rounding, turns_fp32);
}
void add_bf16(const std::uint16_t* values, double* accumulator, std::int64_t count,
              ExactRounding rounding) {
  add(values, accumulator, count, rounding, turns_bf16);
}
void add_fp16(const std::uint16_t* values, double* accumulator, std::int64_t count,
              ExactRounding rounding) {
  add(values, accumulator, count, rounding, turns_fp16);
}

void add_below(double end, const double* values, double* accumulator, std::int64_t count,
               ExactRounding rounding) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double product = values[i] * rounding.weight;
    if (std::abs(product) < end) accumulator[i] += (product + rounding.magic) - rounding.magic;
  }
}

void divide_to_fp32(const double* accumulator, float* to, std::int64_t count, double divisor) {
  const std::int64_t whole = count - count % kLanes;
  divide_turns(accumulator, to, whole, divisor);
  for (std::int64_t i = whole; i < count; ++i) to[i] = static_cast<float>(accumulator[i] / divisor);
}

}  // namespace cox::detail
