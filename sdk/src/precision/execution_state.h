// ExecutionState holds the state that decides a function's bits, beside arguments, parameters and
// buffers: random generators, autocast, attention's permitted kernels, the default dtype.
// Calibration captures the state before a step is tried, and restores it for each trial. Generators
// other than those of the CPU and the named CUDA devices are left to the function. All functions
// act on the calling thread, except that attention's kernels and the default dtype are flags of the
// process.
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

// Kernels permitted to scaled_dot_product_attention: torch's process-wide flags as a value.
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
// Sets only flags that differ.
void put_in_force(const AttentionFlags& wanted);

// Returns this thread's mark that fp8 was requested on the device. Autocast knows no FP8, so a
// PrecisionScope in fp8 is bf16 autocast with the mark set.
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

// StateScope puts `wanted` in force on this thread, with gradients on. The destructor restores the
// earlier state.
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
