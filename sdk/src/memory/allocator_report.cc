#include "sdk/src/memory/allocator_report.h"

namespace cox::detail {

Fragment AllocatorReport::next_fragment() {
  const auto& newest = probe_.reading().allocator;
  const auto now = Steady::now();
  if (!newest || (now < repeat_ && !differs_noticeably(*newest, sent_))) return {};
  sent_ = *newest;
  repeat_ = now + std::chrono::duration_cast<Steady::duration>(repeat_every_);
  return make_fragment(sent_);
}

}  // namespace cox::detail
