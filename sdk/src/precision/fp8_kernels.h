// Kernels that quantise a tensor on its device (fp8_kernels.cu). One finds the largest magnitude;
// one casts, counts and, on request, writes the codes of the transposed matrix too. The two kernels
// read a tensor twice in all; LibTorch's operations start about 25 kernels and write as many
// tensors. Codes, scales and counts are equal to the last bit.
//
// A process compiles the kernels once for each type of values (cuda_program.h), for devices with
// FP8 casts: compute capability 8.9 and above. A trial on the device then compares bits with the
// CPU's; kernels that differ are not used. Immutable; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coordinator/core/status.h"
#include "sdk/src/device/cuda_program.h"
#include "sdk/src/precision/float_codec.h"

namespace cox::detail {

// Order of the codes: the values' order, or also the transposed matrix's.
enum class Fp8Order : std::uint8_t { rows, both };

// Results of the kernels. All are on the device and may still be computed.
struct Fp8Made {
  at::Tensor codes;   // contiguous
  at::Tensor turned;  // the same codes, column-major; undefined with Fp8Order::rows
  at::Tensor scale;   // one float
  at::Tensor counts;  // double[3]: saturated, underflow, amax
};

class Fp8Kernels {
 public:
  // Returns the kernels for values of `type` on `device`, or the reason for having none. The first
  // call compiles and tries them; later calls return its answer.
  static Result<const Fp8Kernels*> of(at::Device device, at::ScalarType type);

  // Quantises by a scale that leaves `margin` bits free above the largest magnitude. REQUIRES for
  // both: values of the kernels' type and device, at least one value, and for Fp8Order::both two
  // dimensions with sizes that are multiples of 16.
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

// Returns the kernels' source text, included at build time.
CudaSource fp8_kernel_source(at::ScalarType type);

}  // namespace cox::detail
