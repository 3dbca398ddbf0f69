// Kernels that quantise a tensor on a device; fp8_kernels.h starts them:
//
//   amax     each block writes the largest finite magnitude that it met, as bits, to `partial`
//   codes    codes in the order of the values
//   both     these and, in the same pass, the codes of the transposed matrix, by tiles in shared
//            memory; sides are multiples of 16 and there are less than 2^32 tiles
//
// With a given scale, a kernel of codes finds the largest magnitude on its way; else the scale
// follows from the result of amax, and the kernel writes the scale. The kernel reads the values
// from the end, which amax read last and left in the cache. Counts are whole numbers, so the order
// of additions changes no bit. Pointers are aligned to 16 bytes; blocks have kThreads threads.
#include "sdk/src/precision/fp8_elements.h"

namespace cox::fp8 {

constexpr int kQuads = kSide / 4;  // words of four codes along a side

struct Bf16 {
  unsigned short raw;
};
struct Fp16 {
  unsigned short raw;
};

// Calls each(value) for the values in 16 bytes.
template <class Each>
__device__ __forceinline__ void values_in(const uint4& words, const float*, const Each& each) {
  each(float_of(words.x)), each(float_of(words.y)), each(float_of(words.z)),
      each(float_of(words.w));
}
template <class Each>
__device__ __forceinline__ void values_in(const uint4& words, const Bf16*, const Each& each) {
  for (const Bits word : {words.x, words.y, words.z, words.w}) {
    each(float_of(word << 16)), each(float_of(word & 0xFFFF0000u));
  }
}
template <class Each>
__device__ __forceinline__ void values_in(const uint4& words, const Fp16*, const Each& each) {
  for (const Bits word : {words.x, words.y, words.z, words.w}) {
    each(fp16_value(word & 0xFFFF)), each(fp16_value(word >> 16));
  }
}

__device__ __forceinline__ float value_of(float value) {
  return value;
}
__device__ __forceinline__ float value_of(Bf16 value) {
  return bf16_value(value.raw);
}
__device__ __forceinline__ float value_of(Fp16 value) {
  return fp16_value(value.raw);
}

__device__ __forceinline__ void read_four(const float* from, float (&values)[4]) {
  const float4 words = *reinterpret_cast<const float4*>(from);
  values[0] = words.x, values[1] = words.y, values[2] = words.z, values[3] = words.w;
}
__device__ __forceinline__ void read_four(const Bf16* from, float (&values)[4]) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  values[0] = float_of(words.x << 16), values[1] = float_of(words.x & 0xFFFF0000u);
  values[2] = float_of(words.y << 16), values[3] = float_of(words.y & 0xFFFF0000u);
}
__device__ __forceinline__ void read_four(const Fp16* from, float (&values)[4]) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  values[0] = fp16_value(words.x & 0xFFFF), values[1] = fp16_value(words.x >> 16);
  values[2] = fp16_value(words.y & 0xFFFF), values[3] = fp16_value(words.y >> 16);
}

__device__ __forceinline__ Bits finite_magnitude(float value) {
  const Bits magnitude = bits_of(value) & kMagnitude;
  return magnitude < kInfinite ? magnitude : 0;
}

// Returns the largest of all threads' values, to all threads.
__device__ __forceinline__ Bits most_of_block(Bits mine) {
  __shared__ Bits of_warps[kThreads / 32];
  const Bits most = __reduce_max_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  Bits all = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) all = larger(all, of_warps[warp]);
  __syncthreads();
  return all;
}

// Sets `counts` to zero, for the kernel of codes.
template <class Value>
__device__ void find_amax(const Value* values, Count size, Bits* partial, double* counts) {
  constexpr int kEach = 16 / sizeof(Value);
  const auto* words = reinterpret_cast<const uint4*>(values);
  const Count vectors = size / kEach;
  const Count stride = static_cast<Count>(gridDim.x) * kThreads;
  if (blockIdx.x == 0 && threadIdx.x < 3) counts[threadIdx.x] = 0;
  Bits most = 0;
  const auto see = [&](float value) { most = larger(most, finite_magnitude(value)); };
  Count at = static_cast<Count>(blockIdx.x) * kThreads + threadIdx.x;
  for (; at + (kAtOnce - 1) * stride < vectors; at += kAtOnce * stride) {
    uint4 read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) read[i] = words[at + i * stride];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values_in(read[i], values, see);
  }
  for (; at < vectors; at += stride) values_in(words[at], values, see);
  const Count last = vectors * kEach + threadIdx.x;
  if (blockIdx.x == 0 && last < size) see(value_of(values[last]));
  const Bits all = most_of_block(most);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

template <class Format>
__device__ float multiplier_of(const Codes& task) {
  if (task.partials == 0) return 1.0f / *task.scale;
  Bits most = 0;
  for (Bits i = threadIdx.x; i < task.partials; i += kThreads) {
    most = larger(most, task.partial[i]);
  }
  const Bits amax = most_of_block(most);
  const int free = free_exponent<Format>(amax, task.margin);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *task.scale = power_of_two(-free);
    task.counts[2] = float_of(amax);
  }
  return power_of_two(free);
}

__device__ void tell(const Codes& task, const Counts& seen) {
  __shared__ Bits sums[2];
  if (threadIdx.x < 2) sums[threadIdx.x] = 0;
  __syncthreads();
  if (seen.saturated != 0) atomicAdd(&sums[0], seen.saturated);
  if (seen.underflow != 0) atomicAdd(&sums[1], seen.underflow);
  __syncthreads();
  if (threadIdx.x < 2 && sums[threadIdx.x] != 0) {
    atomicAdd(&task.counts[threadIdx.x], static_cast<double>(sums[threadIdx.x]));
  }
  if (task.partials != 0) return;
  const double amax = float_of(most_of_block(seen.amax));
  // Bits of magnitudes have the order of the magnitudes.
  if (threadIdx.x == 0) {
    atomicMax(reinterpret_cast<Count*>(&task.counts[2]), __builtin_bit_cast(Count, amax));
  }
}

template <class Value, class Format>
__device__ void write_codes(const Codes& task) {
  const auto* values = static_cast<const Value*>(task.values);
  auto* out = reinterpret_cast<Bits*>(task.codes);
  const float multiplier = multiplier_of<Format>(task);
  Counts seen;
  const Count quads = task.columns / 4;
  constexpr Count kPart = static_cast<Count>(kThreads) * kAtOnce;
  const Count parts = (quads + kPart - 1) / kPart;
  for (Count part = blockIdx.x; part < parts; part += gridDim.x) {
    const Count first = (parts - 1 - part) * kPart + threadIdx.x;
    float read[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kThreads < quads) read_four(values + 4 * (first + i * kThreads), read[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Count at = first + i * kThreads;
      if (at < quads) out[at] = four_codes<Format>(read[i], multiplier, seen);
    }
  }
  const Count last = quads * 4 + threadIdx.x;
  if (blockIdx.x == 0 && last < task.columns) {
    // Zeros add nothing to the counts.
    const float four[4] = {value_of(values[last]), 0, 0, 0};
    task.codes[last] = static_cast<Byte>(any_four_codes<Format>(four, multiplier, seen));
  }
  tell(task, seen);
}

// Turns four rows of four codes into four columns.
__device__ __forceinline__ void turn(const Bits (&rows)[4], Bits (&columns)[4]) {
  const Bits upper_left = __byte_perm(rows[0], rows[1], 0x5140);
  const Bits upper_right = __byte_perm(rows[0], rows[1], 0x7362);
  const Bits lower_left = __byte_perm(rows[2], rows[3], 0x5140);
  const Bits lower_right = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(upper_left, lower_left, 0x5410);
  columns[1] = __byte_perm(upper_left, lower_left, 0x7632);
  columns[2] = __byte_perm(upper_right, lower_right, 0x5410);
  columns[3] = __byte_perm(upper_right, lower_right, 0x7632);
}

template <class Value, class Format>
__device__ void write_both(const Codes& task) {
  // Two tiles in turn, so that one barrier for each is enough. Rows are a word wider than a tile,
  // against conflicts of banks.
  __shared__ Bits tiles[2][kSide][kQuads + 1];
  const auto* values = static_cast<const Value*>(task.values);
  const float multiplier = multiplier_of<Format>(task);
  Counts seen;
  const Bits quad = threadIdx.x % kQuads;
  const Bits line = threadIdx.x / kQuads;
  const auto rows = static_cast<Bits>(task.rows);
  const auto columns = static_cast<Bits>(task.columns);
  const Bits across = (columns + kSide - 1) / kSide;
  const Bits total = across * ((rows + kSide - 1) / kSide);
  int which = 0;
  for (Bits done = blockIdx.x; done < total; done += gridDim.x, which ^= 1) {
    const Bits tile = total - 1 - done;
    const Bits top = tile / across * kSide;
    const Bits left = tile % across * kSide;
    const Bits row = top + 4 * line;
    const Bits column = left + 4 * quad;
    if (row < rows && column < columns) {
      const Count first = static_cast<Count>(row) * columns + column;
      float read[4][4];
      Bits codes[4], turned[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) read_four(values + first + i * task.columns, read[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[i] = four_codes<Format>(read[i], multiplier, seen);
        *reinterpret_cast<Bits*>(task.codes + first + i * task.columns) = codes[i];
      }
      turn(codes, turned);
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[which][4 * quad + i][line] = turned[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Bits down = line + kSide / 4 * i;
      const Count to = static_cast<Count>(left + down) * rows + top + 4 * quad;
      if (left + down < columns && top + 4 * quad < rows) {
        *reinterpret_cast<Bits*>(task.turned + to) = tiles[which][down][quad];
      }
    }
  }
  tell(task, seen);
}

}  // namespace cox::fp8

// The compiler defines COX_FP8_VALUE, the type of the values.
using cox::fp8::Bf16;
using cox::fp8::Fp16;

extern "C" __global__ void __launch_bounds__(cox::fp8::kThreads)
    cox_fp8_amax(const void* values, unsigned long long size, unsigned int* partial,
                 double* counts) {
  cox::fp8::find_amax(static_cast<const COX_FP8_VALUE*>(values), size, partial, counts);
}

extern "C" __global__ void __launch_bounds__(cox::fp8::kThreads)
    cox_fp8_codes_e4m3(cox::fp8::Codes task) {
  cox::fp8::write_codes<COX_FP8_VALUE, cox::fp8::E4m3>(task);
}

extern "C" __global__ void __launch_bounds__(cox::fp8::kThreads)
    cox_fp8_codes_e5m2(cox::fp8::Codes task) {
  cox::fp8::write_codes<COX_FP8_VALUE, cox::fp8::E5m2>(task);
}

extern "C" __global__ void __launch_bounds__(cox::fp8::kThreads)
    cox_fp8_both_e4m3(cox::fp8::Codes task) {
  cox::fp8::write_both<COX_FP8_VALUE, cox::fp8::E4m3>(task);
}

extern "C" __global__ void __launch_bounds__(cox::fp8::kThreads)
    cox_fp8_both_e5m2(cox::fp8::Codes task) {
  cox::fp8::write_both<COX_FP8_VALUE, cox::fp8::E5m2>(task);
}
