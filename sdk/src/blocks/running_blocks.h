// Which blocks this thread is inside of. A scope, opened by an observed call of cox::run and closed
// when its function returns or throws; calls of blocks that nobody observes do not appear.
#pragma once

#include <cstddef>

namespace cox::detail {

class BlockCall;

class RunningBlockScope {
 public:
  explicit RunningBlockScope(BlockCall& call);
  ~RunningBlockScope();
  RunningBlockScope(const RunningBlockScope&) = delete;
  RunningBlockScope& operator=(const RunningBlockScope&) = delete;
};

BlockCall* innermost_block_call();  // nullptr outside of all
std::size_t running_block_depth();

}  // namespace cox::detail
