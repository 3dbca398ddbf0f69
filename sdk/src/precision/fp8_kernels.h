// Kernels that quantise a tensor on its device: one that finds the largest magnitude, and one that
// casts, counts and, where a product wants them, writes the codes of the transposed matrix too
// (fp8_kernels.cu). They read a tensor twice and start two kernels, where LibTorch's operations
// start about 25 and write as many tensors; codes, scales and counts are equal to the last bit.
//
// They are compiled once a process for each type of values (cuda_program.h), for devices that cast
// to FP8 themselves: compute capability 8.9 and above. Then they are tried on that device, and are
// not used unless they give the CPU's bits. Immutable; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coordinator/core/status.h"
#include "sdk/src/device/cuda_program.h"
#include "sdk/src/precision/float_codec.h"

namespace cox::detail {

// Where codes are wanted: as the values lie, or in the order of the transposed matrix as well.
enum class Fp8Order : std::uint8_t { rows, both };

// What kernels made of a tensor. All of it is on the device, and on its way.
struct Fp8Made {
  at::Tensor codes;   // contiguous
  at::Tensor turned;  // the same codes, column-major; undefined with Fp8Order::rows
  at::Tensor scale;   // one float
  at::Tensor counts;  // double[3]: saturated, underflow, amax
};

class Fp8Kernels {
 public:
  // Returns the kernels for values of `type` on `device`, or why there are none; compiles and tries
  // them at the first call, and keeps either answer.
  static Result<const Fp8Kernels*> of(at::Device device, at::ScalarType type);

  // Quantises by a scale that leaves `margin` bits free above the largest magnitude.
  // REQUIRES for both: the type and device of these kernels, one value or more, and for
  // Fp8Order::both two dimensions whose sizes are multiples of 16.
  Fp8Made quantize(const at::Tensor& values, FloatFormat format, std::uint32_t margin,
                   Fp8Order order) const;
  // Quantises by a given scale, one float on the device.
  Fp8Made quantize(const at::Tensor& values, FloatFormat format, const at::Tensor& scale,
                   Fp8Order order) const;

 private:
  Fp8Kernels(CudaFigures figures, CudaKernel amax, CudaKernel codes_e4m3, CudaKernel codes_e5m2,
             CudaKernel both_e4m3, CudaKernel both_e5m2)
      : figures_(figures),
        amax_(amax),
        codes_{codes_e4m3, codes_e5m2},
        both_{both_e4m3, both_e5m2} {}
  static Result<Fp8Kernels> make(at::Device device, at::ScalarType type);
  Status check(at::Device device, at::ScalarType type) const;
  unsigned int blocks_for(std::int64_t parts, int for_each_processor) const;
  void write(const at::Tensor& values, FloatFormat format, const at::Tensor& partial,
             std::uint32_t margin, const Fp8Made& made) const;

  CudaFigures figures_;
  CudaKernel amax_;
  CudaKernel codes_[2];  // by format
  CudaKernel both_[2];
};

// The sources of the kernels, as they were when the program was built.
CudaSource fp8_kernel_source(at::ScalarType type);

}  // namespace cox::detail
