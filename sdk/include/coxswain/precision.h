// Number formats for code of your own: autocast as a scope that nests, what is in force, which
// formats a device can run, and a choice of attention kernels.
//
//   {
//     cox::PrecisionScope scope(at::kCUDA, cox::Precision::fp16);
//     loss = model->forward(x);           // linear layers in fp16, what needs it in fp32
//   }                                     // backward and the optimizer outside
//
// Blocks get the formats of their products from the plan; inside of a scope the scope's format
// counts. Autocast is state of the calling thread. What is computed again in backward sees the
// scopes that it saw at first.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/precision_format.h"
#include "coordinator/core/status.h"

namespace cox {

// PrecisionScope sets autocast on this thread from construction to destruction, then puts back what
// was before, also when an exception passes. fp32: autocast is off inside. bf16, fp16: on with that
// type. fp8: bf16 autocast; linear layers in FP8 are the business of blocks. Parameters keep their
// type in every case. Autocast's cache of cast weights is off inside: with it a weight that is used
// twice gets another gradient, and weights whose storage was exchanged are served stale. Costs
// under a microsecond.
class [[nodiscard]] PrecisionScope {
 public:
  // Throws cox::Error for a device other than CPU and CUDA. Does not ask whether the device can run
  // the format: can_run() does.
  PrecisionScope(at::DeviceType device, Precision format);
  PrecisionScope(at::Device device, Precision format) : PrecisionScope(device.type(), format) {}
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;
  ~PrecisionScope();

 private:
  at::DeviceType device_;
  at::ScalarType type_before_;
  bool was_enabled_;
  bool was_fp8_;
  bool had_cache_;
};

// FormatInForce says in which format a device computes here and now, for code that casts by itself.
struct FormatInForce {
  at::DeviceType device = at::kCPU;
  at::ScalarType type = at::kFloat;  // what matrix products take; the default dtype if not enabled
  bool enabled = false;              // autocast is on
  Precision precision = Precision::fp32;
  friend bool operator==(const FormatInForce&, const FormatInForce&) = default;
};
// Returns the format of the block or PrecisionScope that this runs in; where autocast was turned on
// by other means, bf16 or fp16 as its type says. Throws cox::Error for a device other than CPU and
// CUDA.
FormatInForce current_format(at::DeviceType device);

// FormatTrial is one operation tried in a format, forward and backward.
struct FormatTrial {
  std::string operation;  // "linear", "conv2d", ...
  std::string error;      // first line of what torch said; empty = it ran and gave finite numbers
};
// Tries linear, matmul, layer_norm, softmax, gelu, conv2d, scaled_dot_product_attention, embedding
// and cross_entropy on small tensors. Takes milliseconds, changes no random state and no gradient
// of anybody; ask once. Empty when there is no such device.
std::vector<FormatTrial> try_format(Precision format, at::DeviceType device);

// Returns ok when every one of those operations runs; unavailable when there is no such device
// here; failed_precondition, which names the operations that fail, otherwise.
Status can_run(Precision format, at::DeviceType device);
// Returns all formats for which can_run() is ok. An emulated one counts: it gives the right
// numbers.
PrecisionSet runnable_formats(at::DeviceType device);
// Returns whether the device has no units for the format, so that it gains no speed: fp8 on CPUs
// and on CUDA devices without FP8 products (found by trying one), bf16 on CUDA devices before 8.0.
bool is_emulated(Precision format, at::DeviceType device);

// The kernels for scaled_dot_product_attention. CPUs have flash and math. Only `math` has a second
// derivative.
enum class AttentionBackend : std::uint8_t { flash, memory_efficient, math, any };

// AttentionScope allows only this backend from construction to destruction, then puts back what was
// before. Inside, torch throws from an attention that the backend cannot compute, instead of taking
// another. These are flags of the whole process, not of the thread: do not open one while another
// thread runs attention. A block that is computed again in backward uses the backend that it used
// at first.
class [[nodiscard]] AttentionScope {
 public:
  explicit AttentionScope(AttentionBackend backend);
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;
  ~AttentionScope();

 private:
  using Flags = std::array<bool, 6>;  // one for each kind of kernel
  Flags before_;
};

}  // namespace cox
