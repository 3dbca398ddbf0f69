#include "coordinator/transport/shared_segment.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace cox::transport {

SharedSegment heap_segment(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory =
      static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment));
  std::memset(memory, 0, bytes);
  std::shared_ptr<void> owner(memory, [](void* p) { ::operator delete(p, kAlignment); });
  return SharedSegment({memory, bytes}, std::move(owner));
}

}  // namespace cox::transport
