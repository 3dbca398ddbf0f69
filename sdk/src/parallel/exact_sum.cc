#include "sdk/src/parallel/exact_sum.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "sdk/src/device/scan_loops.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

// Rounding of a value to multiples of the quantum of `magic` = 1.5 x 2^52 quanta. Adding `magic`
// removes all bits below the quantum, and the subtraction is exact.
struct ExactRounding {
  double weight = 1;
  double magic = 0;
};

constexpr std::int64_t kLanes = 8;

template <class From>
COX_INLINE void add_turn(const typename From::Value* values, double* accumulator,
                         ExactRounding rounding) {
  Floats floats;
  Doubles sum;
  From::load(values, floats);
  std::memcpy(&sum, accumulator, sizeof(sum));
  const Doubles product = __builtin_convertvector(floats, Doubles) * rounding.weight;
  sum += (product + rounding.magic) - rounding.magic;
  std::memcpy(accumulator, &sum, sizeof(sum));
}

template <class From>
COX_WIDEST_VECTORS void add_turns(const typename From::Value* values, double* accumulator,
                                  std::int64_t count, ExactRounding rounding) {
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    add_turn<From>(values + i, accumulator + i, rounding);
    add_turn<From>(values + i + kLanes, accumulator + i + kLanes, rounding);
    add_turn<From>(values + i + 2 * kLanes, accumulator + i + 2 * kLanes, rounding);
    add_turn<From>(values + i + 3 * kLanes, accumulator + i + 3 * kLanes, rounding);
  }
  for (; i < count; i += kLanes) add_turn<From>(values + i, accumulator + i, rounding);
}

// Adds whole turns of values. The rest is one more turn, in its own memory. The loop uses the
// processor's widest vectors, but rounds every operation separately and every element alone, so no
// processor, compiler or thread changes a bit. REQUIRES: all values are finite and within the bin.
template <class From>
void add(const typename From::Value* values, double* accumulator, std::int64_t count,
         ExactRounding rounding) {
  const std::int64_t left = count % kLanes;
  add_turns<From>(values, accumulator, count - left, rounding);
  if (left == 0) return;
  typename From::Value rest[kLanes] = {};
  double sums[kLanes] = {};
  std::copy_n(values + (count - left), left, rest);
  std::copy_n(accumulator + (count - left), left, sums);
  add_turns<From>(rest, sums, kLanes, rounding);
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

// Rounds to the nearest fp64 and then to fp32.
void divide_to_fp32(const double* accumulator, float* to, std::int64_t count, double divisor) {
  const std::int64_t whole = count - count % kLanes;
  divide_turns(accumulator, to, whole, divisor);
  for (std::int64_t i = whole; i < count; ++i) to[i] = static_cast<float>(accumulator[i] / divisor);
}

constexpr std::int64_t kSumChunk = 1L << 16;  // elements for one thread at a time
constexpr std::int64_t kBlock = 4096;         // checked, then added while in the cache
constexpr int kRoom = 4;                      // a gradient may grow by 2^4 between steps
constexpr int kMostRoom = 12;
constexpr double kEnd = 0x1p900;  // 2^ExactBin::kHighest

struct Terms {
  ExactRounding rounding;
  double limit;  // smaller magnitudes fit
};

Terms terms_of(const ExactBin& bin, double weight) {
  return {{weight, std::ldexp(1.5, bin.ceiling + bin.count_bits)}, std::ldexp(1.0, bin.ceiling)};
}

// Adds a block of any values: checks each, and leaves out those beyond the end.
Deposit deposit_checked(const double* values, double* accumulator, std::int64_t count,
                        const Terms& terms) {
  Deposit seen;
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::abs(values[i] * terms.rounding.weight);
    if (size < kEnd) {
      seen.amax = std::max(seen.amax, size);
    } else {
      ++seen.nonfinite;
    }
  }
  seen.fits = seen.amax < terms.limit;
  for (std::int64_t i = 0; seen.fits && i < count; ++i) {
    const double product = values[i] * terms.rounding.weight;
    const double magic = terms.rounding.magic;
    if (std::abs(product) < kEnd) accumulator[i] += (product + magic) - magic;
  }
  return seen;
}

// The largest word shows whether all values are finite, and is then the largest magnitude, because
// multiplying and rounding keep the order.
template <class From>
Deposit deposit_block(const at::Tensor& flat, std::int64_t first, std::int64_t count,
                      double* accumulator, const Terms& terms) {
  const auto* values = static_cast<const typename From::Value*>(flat.const_data_ptr()) + first;
  const std::uint32_t largest = largest_word(values, count);
  if (largest >= From::kWords.infinity) {
    const at::Tensor wide = flat.slice(0, first, first + count).to(at::kDouble);
    return deposit_checked(wide.const_data_ptr<double>(), accumulator + first, count, terms);
  }
  Deposit seen;
  seen.amax = decoded<From>(largest) * std::abs(terms.rounding.weight);
  seen.fits = seen.amax < terms.limit;
  if (seen.fits) add<From>(values, accumulator + first, count, terms.rounding);
  return seen;
}

Deposit deposit_any(const at::Tensor& flat, std::int64_t first, std::int64_t count,
                    double* accumulator, const Terms& terms) {
  switch (flat.scalar_type()) {
    case at::kFloat:
      return deposit_block<FromFp32>(flat, first, count, accumulator, terms);
    case at::kBFloat16:
      return deposit_block<FromBf16>(flat, first, count, accumulator, terms);
    case at::kHalf:
      return deposit_block<FromFp16>(flat, first, count, accumulator, terms);
    default:
      return deposit_checked(flat.const_data_ptr<double>() + first, accumulator + first, count,
                             terms);
  }
}

// Returns the gradient contiguous on the CPU, in one of the four types with loops.
at::Tensor flattened(const at::Tensor& gradient) {
  const at::Tensor here = dense(gradient.detach()).to(at::kCPU);
  const at::ScalarType type = here.scalar_type();
  const bool is_own = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  return (is_own ? here : here.to(at::kDouble)).contiguous().view({-1});
}

}  // namespace

Deposit merged(const Deposit& a, const Deposit& b) {
  return {std::max(a.amax, b.amax), a.nonfinite + b.nonfinite, a.fits && b.fits};
}

Deposit deposit(const at::Tensor& gradient, double weight, const ExactBin& bin,
                std::span<double> accumulator) {
  const torch::NoGradGuard no_grad;
  const at::Tensor flat = flattened(gradient);
  TORCH_CHECK(flat.numel() == static_cast<std::int64_t>(accumulator.size()),
              "exact sum: expected a gradient of ", accumulator.size(), " elements, found ",
              flat.numel());
  const Terms terms = terms_of(bin, weight);
  std::mutex mutex;
  Deposit total;
  at::parallel_for(0, flat.numel(), kSumChunk, [&](std::int64_t begin, std::int64_t end) {
    Deposit seen;
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, end - first);
      seen = merged(seen, deposit_any(flat, first, count, accumulator.data(), terms));
    }
    const std::scoped_lock lock(mutex);
    total = merged(total, seen);
  });
  return total;
}

void withdraw(std::span<const double> accumulator, double divisor, const at::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(accumulator.size());
  TORCH_CHECK(gradient.numel() == size, "exact sum: expected a gradient of ", size,
              " elements, found ", gradient.numel());
  const bool is_own =
      gradient.is_cpu() && gradient.scalar_type() == at::kFloat && gradient.is_contiguous();
  if (is_own) {
    float* to = gradient.mutable_data_ptr<float>();
    at::parallel_for(0, size, kSumChunk, [&](std::int64_t begin, std::int64_t end) {
      divide_to_fp32(accumulator.data() + begin, to + begin, end - begin, divisor);
    });
    return;
  }
  auto* sums = const_cast<double*>(accumulator.data());  // from_blob takes no const; only read
  const at::Tensor exact = at::from_blob(sums, gradient.sizes(), at::kDouble);
  gradient.detach().copy_(exact / divisor);
}

ExactBin next_bin(const ExactBin& bin, double amax, std::uint64_t micro_batches) {
  ExactBin next = first_bin(micro_batches);
  next.ceiling = bin.ceiling;
  if (!(amax > 0)) return next;
  int least = 0;  // the lowest ceiling above amax
  std::frexp(amax, &least);
  const int fallen = std::min(bin.ceiling - 1, least + kMostRoom);
  next.ceiling = std::clamp(std::max(least + kRoom, fallen), ExactBin::kLowest, ExactBin::kHighest);
  return next;
}

ExactBin first_bin(std::uint64_t micro_batches) {
  const std::uint64_t most = std::max<std::uint64_t>(micro_batches, 2);
  ExactBin bin;
  bin.count_bits = std::min<std::int32_t>(static_cast<std::int32_t>(std::bit_width(most - 1)),
                                          ExactBin::kMostCountBits);
  return bin;
}

}  // namespace cox::detail
