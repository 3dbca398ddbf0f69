// Number formats for code of your own: a scope that sets autocast, the format in force, the formats
// that a device can run, and a choice of attention kernels. Scopes nest.
//
//   {
//     cox::PrecisionScope scope(at::kCUDA, cox::Precision::fp16);
//     loss = model->forward(x);           // linear layers in fp16, sensitive operators in fp32
//   }                                     // backward and the optimizer outside
//
// Blocks get the formats of their products from the plan; inside a scope the scope's format counts.
// The scopes affect the calling thread, except AttentionScope, which affects the process. Operators
// that are recomputed in backward use the scopes of their first run.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/precision_format.h"
#include "coordinator/core/status.h"

namespace cox {

// PrecisionScope sets autocast on this thread from construction to destruction. The destructor
// restores the former state, also when an exception passes. fp32 turns autocast off; bf16 and fp16
// turn autocast on with that type. fp8 means bf16 autocast: only blocks run linear layers in FP8.
// Parameters keep their type in every case. Costs under a microsecond.
//
// Autocast's cache of cast weights is off inside. The cache would change the gradient of a weight
// that is used twice, and would serve stale weights after an exchange of storage.
class [[nodiscard]] PrecisionScope {
 public:
  // Throws cox::Error for a device other than CPU and CUDA. Does not check whether the device can
  // run the format; can_run() does.
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

// FormatInForce is the format in which a device computes at the moment, for code that casts by
// itself.
struct FormatInForce {
  at::DeviceType device = at::kCPU;
  at::ScalarType type = at::kFloat;  // type of matrix products; the default dtype if not enabled
  bool enabled = false;              // autocast is on
  Precision precision = Precision::fp32;
  friend bool operator==(const FormatInForce&, const FormatInForce&) = default;
};
// Returns the format of the enclosing block or PrecisionScope. If autocast was turned on by other
// means, returns bf16 or fp16 by autocast's type. Throws cox::Error for a device other than CPU and
// CUDA.
FormatInForce current_format(at::DeviceType device);

// FormatTrial is one operation tried in a format, forward and backward.
struct FormatTrial {
  std::string operation;  // "linear", "conv2d", ...
  std::string error;      // first line of torch's message; empty = ran and gave finite numbers
};
// Tries linear, matmul, layer_norm, softmax, gelu, conv2d, scaled_dot_product_attention, embedding
// and cross_entropy on small tensors. Takes milliseconds, so call try_format() outside of the loop.
// Changes no random state and no gradient of the program. Returns an empty list if there is no such
// device. Local.
std::vector<FormatTrial> try_format(Precision format, at::DeviceType device);

// Returns ok if every operation of try_format() runs, and unavailable if there is no such device.
// Otherwise returns failed_precondition and names the operations that fail.
Status can_run(Precision format, at::DeviceType device);
// Returns all formats for which can_run() is ok. Emulated formats are included, because their
// numbers are right.
PrecisionSet runnable_formats(at::DeviceType device);
// Returns whether the device has no units for the format, so that the format gains no speed. No
// units: fp8 on CPUs and on CUDA devices without FP8 products (one product is tried), bf16 on CUDA
// devices before 8.0.
bool is_emulated(Precision format, at::DeviceType device);

// The kernels for scaled_dot_product_attention. CPUs have flash and math. Only `math` has a second
// derivative.
enum class AttentionBackend : std::uint8_t { flash, memory_efficient, math, any };

// AttentionScope allows only one backend from construction to destruction, then restores the former
// choice. Inside, torch throws from an attention that the backend cannot compute, instead of using
// another backend. The flags belong to the whole process: do not open an AttentionScope while
// another thread runs attention. A block that is recomputed in backward uses the backend of its
// first run.
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
