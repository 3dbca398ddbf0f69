#include "coordinator/transport/shared/segment.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "coordinator/io/limits.h"

namespace cox::transport {

SharedSegment heap_segment(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* memory =
      static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment));
  std::memset(memory, 0, bytes);
  std::shared_ptr<void> owner(memory, [](void* p) { ::operator delete(p, kAlignment); });
  return SharedSegment({memory, bytes}, std::move(owner));
}

Result<SharedSegment> inherited_segment(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return resource_exhausted("shared memory: expected room for ", bytes, " bytes, found none (",
                              io::errno_text(errno), ")");
  std::shared_ptr<void> owner(memory, [bytes](void* p) { munmap(p, bytes); });
  return SharedSegment({static_cast<std::byte*>(memory), bytes}, std::move(owner));
}

}  // namespace cox::transport
