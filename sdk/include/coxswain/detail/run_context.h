// RunContext tells the code that runs on a thread which block it runs in and under which memory
// action: calls of blocks and tiles open a scope each, and everything that a call does looks here
// first. The contexts of a thread form a stack; each lives on the stack of the call that opened it.
#pragma once

#include <optional>

#include "coordinator/core/job.h"

namespace cox::detail {

class BlockState;

// RunContext is a block that runs on this thread, or a tile of one.
struct RunContext {
  BlockState* state = nullptr;  // null for a tile outside of all blocks
  MemoryAction action = MemoryAction::keep;
  bool is_covered = false;  // something larger runs this again, so no action applies inside
  bool is_rerun = false;    // this is a second run
  const RunContext* outer = nullptr;
  bool in_fp32 = false;  // overrides the formats of blocks
};

// Returns the innermost context of this thread, null outside of all.
const RunContext* current_context();

// Returns the action that is carried out where this thread is: recompute inside of anything that
// runs again, nothing outside of all steered blocks.
std::optional<MemoryAction> current_action();

// Makes `context` the innermost one of this thread. REQUIRES: `context` outlives the scope.
class ContextScope {
 public:
  explicit ContextScope(const RunContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const RunContext* before_;
};

// Switches autocast's cache of casts off while it lives. A cached cast of a weight would make
// gradients depend on the memory action.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool was_on_;
};

}  // namespace cox::detail
