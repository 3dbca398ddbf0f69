// ExecutionState: what besides arguments, parameters and buffers decides the bits that a function
// computes: random generators, autocast, FP8 and its scales, the choice of attention kernels, the
// default dtype.
// Captured before a block's function runs and put in force while it runs again. Generators are
// those of the CPU and of the CUDA devices named; others are the function's own business.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "sdk/src/precision/attention_flags.h"
#include "sdk/src/precision/fp8_scope.h"

namespace cox::detail {

struct ExecutionState {
  struct Generator {
    at::Generator generator;
    at::Tensor state;
  };
  struct Autocast {
    at::DeviceType device = at::kCPU;
    bool is_enabled = false;
    at::ScalarType type = at::kFloat;
    bool is_fp8 = false;  // bf16 stands for fp8 (fp8_mark.h)
  };
  std::vector<Generator> generators;
  std::array<Autocast, 2> autocast;
  std::optional<Fp8Place> fp8;
  bool has_cast_cache = false;
  AttentionFlags attention{};
  caffe2::TypeMeta default_type;
};

// `devices`: CPU is always included; of the others, CUDA devices are, each once.
ExecutionState capture_state(std::span<const at::Device> devices);

// Puts `wanted` in force on this thread, with gradients on, and what was before afterwards.
class StateScope {
 public:
  explicit StateScope(const ExecutionState& wanted);
  ~StateScope();
  StateScope(const StateScope&) = delete;
  StateScope& operator=(const StateScope&) = delete;

 private:
  ExecutionState before_;
  Fp8Scope fp8_;
  at::AutoGradMode with_gradients_;
};

}  // namespace cox::detail
