#include "sdk/src/blocks/running_blocks.h"

#include <vector>

namespace cox::detail {
namespace {

std::vector<BlockCall*>& calls() {
  thread_local std::vector<BlockCall*> stack;
  return stack;
}

}  // namespace

RunningBlockScope::RunningBlockScope(BlockCall& call) {
  calls().push_back(&call);
}
RunningBlockScope::~RunningBlockScope() {
  calls().pop_back();
}

BlockCall* innermost_block_call() {
  return calls().empty() ? nullptr : calls().back();
}
std::size_t running_block_depth() {
  return calls().size();
}

}  // namespace cox::detail
