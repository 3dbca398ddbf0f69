#include "sdk/src/stream/saved_tensors.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "sdk/src/libtorch/own_engine.h"
#include "sdk/src/stream/inner_gradients.h"
#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

// A plain pointer, without a destructor: exit() destroys thread-local objects before its handlers
// run, and handlers may run operators.
thread_local SavedTensorFrame* frame_of_thread = nullptr;

// Counts nested backward passes of this thread.
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

class SavedTensorEngine final : public OwnEngine {
 public:
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return frame_of_thread == nullptr ? nullptr : frame_of_thread->make_hooks();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    start_threads_once();
    const PassDepth depth;
    if (!is_shown()) passes_elsewhere_.fetch_add(1, std::memory_order_relaxed);
    const auto run = [&] {
      const StreamPause unseen;
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    };
    if (depth.is_outermost() && create_graph && !accumulate_grad)
      return show_gradients({roots, inputs, outputs}, run);
    const StreamPause unseen;
    const auto kind = accumulate_grad ? BackwardKind::accumulating : BackwardKind::returning;
    if (depth.is_outermost()) tell_backward_begins({kind, roots, inputs, keep_graph, create_graph});
    auto gradients = run();
    if (depth.is_outermost()) tell_backward_ended(kind);
    return gradients;
  }

  std::uint64_t passes_elsewhere() const {
    return passes_elsewhere_.load(std::memory_order_relaxed);
  }

  // Never destroyed, because the engine's threads may outlive main().
  static SavedTensorEngine& instance() {
    static auto* engine = new SavedTensorEngine;
    return *engine;
  }
  static Engine& get() { return instance(); }

 private:
  std::atomic<std::uint64_t> passes_elsewhere_ = 0;  // on threads without a stream
};

Status foreign_engine() {
  return failed_precondition(
      "autograd engine: expected torch's own engine, found a different one (is Python's torch "
      "loaded in this "
      "process?); saved bytes are not measured and memory actions are off");
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorFrame& frame)
    : outer_(std::exchange(frame_of_thread, &frame)) {}
SavedTensorScope::~SavedTensorScope() {
  frame_of_thread = outer_;
}

SavedTensorFrame* innermost_frame() {
  return frame_of_thread;
}

Status install_saved_tensor_engine() {
  if (check_saved_tensor_engine().ok()) return ok_status();
  if (&Engine::get_default_engine() != &Engine::get_base_engine()) return foreign_engine();
  torch::autograd::set_default_engine_stub(&SavedTensorEngine::get);
  return check_saved_tensor_engine();
}

std::uint64_t backward_passes_elsewhere() {
  return check_saved_tensor_engine().ok() ? SavedTensorEngine::instance().passes_elsewhere() : 0;
}

Status check_saved_tensor_engine() {
  const bool ours = &Engine::get_default_engine() == &SavedTensorEngine::get();
  return ours ? ok_status() : foreign_engine();
}

}  // namespace cox::detail
