// Saved-tensor hooks without Python. Autograd asks its engine for hooks whenever it saves a tensor
// for backward; ours answers from the innermost SavedTensorFrame of the calling thread, or with
// none. What counts, recomputes or offloads saved tensors is a frame. Without a frame the cost is
// one branch. Frames belong to the thread that opened them; hooks run on whatever thread runs
// backward.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "coordinator/core/status.h"

namespace cox::detail {

class SavedTensorFrame {
 public:
  virtual ~SavedTensorFrame() = default;
  // Called once per saved tensor, under the frame. nullptr leaves that tensor to autograd.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
  // The frame that decides what becomes of the tensors: itself, unless it only looks on.
  virtual SavedTensorFrame* deciding() { return this; }
  // The call under the frame is over, also when it threw; on its thread, after its scope.
  virtual void leave() noexcept {}
};

SavedTensorFrame* innermost_frame();  // of this thread, or nullptr

// Makes `frame` the innermost one of this thread. Scopes end in the reverse order of their
// beginning.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorFrame& frame);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;
};

// Makes our engine the process's one; again is a no-op. To be called before the first backward().
// failed_precondition when another engine than torch's own is there.
Status install_saved_tensor_engine();

// ok while our engine is the one in force.
Status check_saved_tensor_engine();

}  // namespace cox::detail
