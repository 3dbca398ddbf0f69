#include <ATen/core/grad_mode.h>

#include "coxswain/block.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox {

BlockScope::BlockScope(std::string_view name) {
  detail::SavedTensorFrame* frame =
      at::GradMode::is_enabled() ? detail::innermost_frame() : nullptr;
  if (frame != nullptr && frame->begin_block(name)) frame_ = frame;
}

BlockScope::~BlockScope() {
  if (frame_ != nullptr) frame_->end_block();
}

}  // namespace cox
