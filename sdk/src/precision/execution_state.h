// ExecutionState is what decides the bits that a function computes, besides its arguments,
// parameters and buffers: random generators, autocast, the kernels that attention may choose, the
// default dtype. It is captured before a step is tried, and put in force for each trial. It knows
// the generators of the CPU and of the CUDA devices named; other generators are the function's own
// business. All functions act on the calling thread, but attention's kernels and the default dtype
// are flags of the whole process.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <span>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cox::detail {

// The kernels that scaled_dot_product_attention may choose: torch's process-wide flags as a value.
struct AttentionFlags {
  bool flash = true;
  bool flash3 = false;
  bool efficient = true;
  bool math = true;
  bool cudnn = true;
  bool overrideable = true;
  friend bool operator==(const AttentionFlags&, const AttentionFlags&) = default;
};

AttentionFlags attention_flags();
// Writes only when something differs.
void put_in_force(const AttentionFlags& wanted);

// Returns this thread's mark that fp8 was asked for on the device. Autocast knows no FP8, so a
// PrecisionScope in fp8 is bf16 autocast with this mark set.
bool& fp8_mark(c10::DeviceType device);

struct ExecutionState {
  struct Generator {
    at::Generator generator;
    at::Tensor state;
  };
  struct Autocast {
    at::DeviceType device = at::kCPU;
    bool is_enabled = false;
    at::ScalarType type = at::kFloat;
    bool is_fp8 = false;  // the mark: bf16 stands for fp8
  };
  std::vector<Generator> generators;
  std::array<Autocast, 2> autocast;
  bool has_cast_cache = false;
  AttentionFlags attention{};
  caffe2::TypeMeta default_type;
};

// Captures the state of the CPU and of the CUDA devices among `devices`, each once.
ExecutionState capture_state(std::span<const at::Device> devices);
// Captures the state of the devices that hold the model's parameters.
ExecutionState capture_state(const torch::nn::Module& model);

// Puts `wanted` in force on this thread, with gradients on; its destructor puts back what was in
// force before.
class StateScope {
 public:
  explicit StateScope(const ExecutionState& wanted);
  ~StateScope();
  StateScope(const StateScope&) = delete;
  StateScope& operator=(const StateScope&) = delete;

 private:
  ExecutionState before_;
  at::AutoGradMode with_gradients_;
};

}  // namespace cox::detail
