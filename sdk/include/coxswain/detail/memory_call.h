// MemoryCall: one call of a block as its memory action sees it, in the order of its methods:
// input() for each input where runs_again() says so, begin(), the block's function, end().
// Destroyed before end() (the function threw), it leaves no trace. It also is the scope in which
// the block counts as the running one of this thread, and autocast keeps no casts of weights (kept
// ones would make gradients depend on the action).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "coordinator/core/job.h"
#include "coxswain/block.h"
#include "coxswain/detail/rerun.h"

namespace cox::detail {

class BlockState;

// A block that runs on this thread, or a tile of one.
struct RunContext {
  BlockState* state = nullptr;  // nullptr for a tile outside of all blocks
  MemoryAction action = MemoryAction::keep;
  bool is_covered = false;  // runs again as part of something larger, so nothing inside acts
  bool is_rerun = false;    // runs again right now
  const RunContext* outer = nullptr;
  bool in_fp32 = false;  // whatever format blocks have
};

const RunContext* current_context();  // nullptr outside of all

// The action that is carried out where this thread is: recompute inside of anything that runs
// again. Nothing outside of all steered blocks.
std::optional<MemoryAction> current_action();

class ContextScope {
 public:
  explicit ContextScope(const RunContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const RunContext* before_;
};

// Autocast's cache of casts is off inside.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool was_on_;
};

class MemoryCall {
 public:
  explicit MemoryCall(const std::shared_ptr<BlockGate>& gate);
  ~MemoryCall();
  MemoryCall(const MemoryCall&) = delete;
  MemoryCall& operator=(const MemoryCall&) = delete;

  // Whether begin() wants the means to run the function again.
  bool runs_again() const { return runs_again_; }
  void input(const at::Tensor& tensor);
  void begin(std::unique_ptr<Rerun> again);  // nullptr unless runs_again()
  void end();

 private:
  class Work;

  BlockState& state_;
  std::unique_ptr<Work> work_;  // nullptr for a call that is simply kept
  bool runs_again_ = false;
  RunContext context_;
  std::optional<ContextScope> scope_;
  NoCastCache no_cast_cache_;
};

}  // namespace cox::detail
