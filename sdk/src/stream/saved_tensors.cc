#include "sdk/src/stream/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

#include <mutex>
#include <vector>

#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

std::vector<SavedTensorFrame*>& frames() {
  thread_local std::vector<SavedTensorFrame*> stack;
  return stack;
}

// Backward passes of this thread that run inside one another.
class PassDepth {
 public:
  PassDepth() { ++count(); }
  ~PassDepth() { --count(); }
  PassDepth(const PassDepth&) = delete;
  PassDepth& operator=(const PassDepth&) = delete;
  bool is_outermost() const { return count() == 1; }

 private:
  static int& count() {
    thread_local int passes = 0;
    return passes;
  }
};

class SavedTensorEngine final : public Engine {
 public:
  ~SavedTensorEngine() override { stop(); }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& stack = frames();
    return stack.empty() ? nullptr : stack.back()->make_hooks();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    std::call_once(started_, [this] { start_threads(); });
    const StreamPause unseen;
    const PassDepth depth;
    const auto kind = accumulate_grad ? BackwardKind::accumulating : BackwardKind::returning;
    if (depth.is_outermost()) tell_backward_begins({kind, roots, inputs});
    auto gradients =
        Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    if (depth.is_outermost()) tell_backward_ended(kind);
    return gradients;
  }

  // Never destroyed: its threads may outlive main().
  static Engine& get() {
    static auto* engine = new SavedTensorEngine;
    return *engine;
  }

 private:
  // LibTorch starts threads for devices and for deep passes once in a process, for the engine that
  // runs first. After a pass of torch's own engine this one has none.
  void start_threads() {
    initialize_device_threads_pool();
    if (thread_pool_shared_ == nullptr) start_device_threads();
  }

  std::once_flag started_;
};

Status foreign_engine() {
  return failed_precondition(
      "autograd engine: expected torch's own, found another one (is Python's torch loaded in this "
      "process?); saved bytes are not measured and memory actions are off");
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorFrame& frame) {
  frames().push_back(&frame);
}
SavedTensorScope::~SavedTensorScope() {
  frames().pop_back();
}

SavedTensorFrame* innermost_frame() {
  return frames().empty() ? nullptr : frames().back();
}

Status install_saved_tensor_engine() {
  if (check_saved_tensor_engine().ok()) return ok_status();
  if (&Engine::get_default_engine() != &Engine::get_base_engine()) return foreign_engine();
  torch::autograd::set_default_engine_stub(&SavedTensorEngine::get);
  return check_saved_tensor_engine();
}

Status check_saved_tensor_engine() {
  const bool ours = &Engine::get_default_engine() == &SavedTensorEngine::get();
  return ours ? ok_status() : foreign_engine();
}

}  // namespace cox::detail
