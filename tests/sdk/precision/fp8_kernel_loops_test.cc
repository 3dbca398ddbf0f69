// The quantising kernels, run by the host: block after block, with the threads of a block in turns
// from barrier to barrier. Only the processor's cast differs; reads, writes, tiles, ends and sums
// are those of a device.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <type_traits>
#include <vector>

#include "sdk/src/precision/float_codec.h"

namespace fp8_device {

struct Place {
  unsigned int x = 0;
};
Place threadIdx;
Place blockIdx;
Place gridDim;

constexpr unsigned int kThreadsOfBlock = 256;
constexpr std::size_t kStackBytes = std::size_t{1} << 16;

struct Thread {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool is_done = false;
};
std::vector<Thread> threads(kThreadsOfBlock);
ucontext_t scheduler;
const std::function<void()>* kernel_under_way = nullptr;

void wait_for_block() {
  swapcontext(&threads[threadIdx.x].context, &scheduler);
}

void begin_thread() {
  (*kernel_under_way)();
  threads[threadIdx.x].is_done = true;
}

void run(unsigned int blocks, const std::function<void()>& kernel) {
  kernel_under_way = &kernel;
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (Thread& thread : threads) {
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data();
      thread.context.uc_stack.ss_size = thread.stack.size();
      thread.context.uc_link = &scheduler;
      thread.is_done = false;
      makecontext(&thread.context, &begin_thread, 0);
    }
    while (!threads.front().is_done) {
      for (threadIdx.x = 0; threadIdx.x < kThreadsOfBlock; ++threadIdx.x)
        swapcontext(&scheduler, &threads[threadIdx.x].context);
    }
  }
}

struct alignas(16) Words4 {
  unsigned int x, y, z, w;
};
struct alignas(8) Words2 {
  unsigned int x, y;
};
struct alignas(16) Floats4 {
  float x, y, z, w;
};

// Called by all threads of a block together.
unsigned int most_of_warp(unsigned int value) {
  static std::array<unsigned int, kThreadsOfBlock> values;
  values[threadIdx.x] = value;
  wait_for_block();
  const auto* first = values.data() + threadIdx.x / 32 * 32;
  const unsigned int most = *std::max_element(first, first + 32);
  wait_for_block();
  return most;
}

template <class Number>
void atomicAdd(Number* to, Number value) {
  *to += value;
}

void atomicMax(unsigned long long* to, unsigned long long value) {
  *to = std::max(*to, value);
}

// Picks bytes of `high` and `low` by the selector: one nibble for each result byte.
unsigned int bytes_picked(unsigned int low, unsigned int high, unsigned int selector) {
  const std::uint64_t all = std::uint64_t{high} << 32 | low;
  unsigned int picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<unsigned int>(all >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return picked;
}

}  // namespace fp8_device

using fp8_device::atomicAdd;
using fp8_device::atomicMax;
using fp8_device::blockIdx;
using fp8_device::gridDim;
using fp8_device::run;
using fp8_device::threadIdx;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
#define __syncthreads fp8_device::wait_for_block
#define __reduce_max_sync(mask, value) fp8_device::most_of_warp(value)
#define __byte_perm fp8_device::bytes_picked
#define uint4 fp8_device::Words4
#define uint2 fp8_device::Words2
#define float4 fp8_device::Floats4
#define COX_FP8_VALUE float
#include "sdk/src/precision/fp8_kernels.cu"

#include <doctest/doctest.h>

namespace {

using cox::detail::FloatFormat;
using cox::detail::QuantizeCounts;
using cox::fp8::Bf16;
using cox::fp8::Bits;
using cox::fp8::Byte;
using cox::fp8::Codes;
using cox::fp8::E4m3;
using cox::fp8::E5m2;
using cox::fp8::Fp16;

struct Quantized {
  std::vector<Byte> codes;
  std::vector<Byte> turned;
  float scale = 0;
  QuantizeCounts counts;
};

constexpr unsigned int kBlocks = 3;

// Quantises with the two kernels; uses `scale` unless it is 0.
template <class Value, class Format>
Quantized quantized(const std::vector<Value>& values, std::size_t rows, float scale, bool turns) {
  struct alignas(16) Sixteen {
    std::array<std::byte, 16> bytes;
  };
  std::vector<Sixteen> memory((values.size() * sizeof(Value) + 15) / 16);
  std::copy_n(values.data(), values.size(), reinterpret_cast<Value*>(memory.data()));
  Quantized result;
  result.codes.resize(values.size() + 4);
  result.turned.resize(turns ? values.size() : 0);
  result.scale = scale;
  std::array<Bits, kBlocks> partial{};
  std::array<double, 3> counts{};
  Codes task{};
  task.values = memory.data();
  task.rows = turns ? rows : 1;
  task.columns = turns ? values.size() / rows : values.size();
  task.scale = &result.scale;
  task.codes = result.codes.data();
  task.turned = result.turned.data();
  task.counts = counts.data();
  if (scale == 0) {
    counts.fill(77);  // the first kernel clears them
    task.partial = partial.data();
    task.partials = kBlocks;
    run(kBlocks, [&] {
      cox::fp8::find_amax(static_cast<const Value*>(task.values), values.size(), partial.data(),
                          counts.data());
    });
  }
  run(kBlocks, [&] {
    turns ? cox::fp8::write_both<Value, Format>(task) : cox::fp8::write_codes<Value, Format>(task);
  });
  CHECK(std::all_of(result.codes.end() - 4, result.codes.end(), [](Byte b) { return b == 0; }));
  result.codes.resize(values.size());
  result.counts = {values.size(), static_cast<std::uint64_t>(counts[0]),
                   static_cast<std::uint64_t>(counts[1]), static_cast<float>(counts[2])};
  return result;
}

template <class Format>
constexpr FloatFormat kFormat = FloatFormat::e4m3;
template <>
constexpr FloatFormat kFormat<E5m2> = FloatFormat::e5m2;

// Returns values of many magnitudes, with zeros, NaN and infinities.
template <class Value>
std::vector<Value> some_values(std::size_t count) {
  std::mt19937 generator(static_cast<unsigned int>(count));
  std::normal_distribution<float> normal;
  std::vector<Value> values;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned int kind = generator() % 50;
    const float size = std::exp(4 * normal(generator));
    const float value = kind == 0   ? 0.0F
                        : kind == 1 ? -INFINITY
                        : kind == 2 ? std::nanf("")
                                    : normal(generator) * size;
    if constexpr (std::is_same_v<Value, float>) {
      values.push_back(value);
    } else {
      using Narrow = std::conditional_t<std::is_same_v<Value, Bf16>, c10::BFloat16, c10::Half>;
      values.push_back({Narrow(value).x});
    }
  }
  return values;
}

template <class Value, class Format>
void check(std::size_t rows, std::size_t columns, float scale, bool turns) {
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(scale);
  const std::vector<Value> values = some_values<Value>(rows * columns);
  const Quantized ours = quantized<Value, Format>(values, rows, scale, turns);
  std::vector<float> wide;
  for (const Value& value : values) wide.push_back(cox::fp8::value_of(value));
  float amax = 0;
  for (const float value : wide) amax = std::max(amax, std::isfinite(value) ? std::fabs(value) : 0);
  const int free = cox::fp8::free_exponent<Format>(std::bit_cast<Bits>(amax), 0);
  const float expected = scale != 0 ? scale : cox::fp8::power_of_two(-free);
  std::vector<Byte> codes(values.size());
  const QuantizeCounts counts = cox::detail::quantize(kFormat<Format>, wide, 1 / expected, codes);
  CHECK(ours.scale == expected);
  CHECK(ours.codes == codes);
  CHECK(ours.counts == counts);
  std::vector<Byte> turned(ours.turned.size());
  for (std::size_t i = 0; i < turned.size(); ++i)
    turned[i % columns * rows + i / columns] = codes[i];
  CHECK(ours.turned == turned);
}

template <class Value>
void check_all(const std::vector<float>& scales) {
  constexpr std::size_t kAny[][2] = {{1, 1}, {1, 3}, {5, 7}, {3, 4099}, {1, 40000}};
  constexpr std::size_t kTurned[][2] = {{16, 16}, {64, 64}, {80, 208}, {272, 144}};
  for (const float scale : scales) {
    for (const auto& [rows, columns] : kAny) {
      check<Value, E4m3>(rows, columns, scale, false);
      check<Value, E5m2>(rows, columns, scale, false);
    }
    for (const auto& [rows, columns] : kTurned) {
      check<Value, E4m3>(rows, columns, scale, true);
      check<Value, E5m2>(rows, columns, scale, true);
    }
  }
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_kernel_loops") {
  TEST_CASE("kernels write the codes, scales and counts of the CPU's loops, in both orders") {
    check_all<float>({0, 0.02F, 100});
    check_all<Bf16>({0});
    check_all<Fp16>({0});
  }
}
