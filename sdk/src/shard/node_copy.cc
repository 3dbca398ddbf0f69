#include "sdk/src/shard/node_copy.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "coordinator/io/limits.h"

namespace cox::detail {
namespace {

using transport::kPage;

Status refused(const char* step, std::size_t bytes) {
  return resource_exhausted(
      "shard.mode: expected a mapping of ", bytes, " bytes of shared memory, found none (", step,
      ": ", io::errno_text(errno), "); raise the limit of address space (ulimit -v)");
}

// A shared mapping of size 0 that is moved is a second mapping of the same pages (mremap(2)).
Result<std::shared_ptr<std::byte>> map_again(std::byte* memory, std::size_t bytes) {
  void* again = mremap(memory, 0, bytes, MREMAP_MAYMOVE);
  if (again == MAP_FAILED) return refused("mremap", bytes);
  std::shared_ptr<std::byte> owned(static_cast<std::byte*>(again),
                                   [bytes](std::byte* p) { munmap(p, bytes); });
  if (mprotect(again, bytes, PROT_READ) != 0) return refused("mprotect", bytes);
  return owned;
}

}  // namespace

Result<NodeCopy> NodeCopy::create(transport::Communicator& node, std::size_t bytes) {
  const std::size_t pages = transport::round_up(bytes == 0 ? 1 : bytes, kPage);
  auto segment = node.shared_segment(pages);
  if (!segment.ok()) return segment.status();
  auto readable = map_again(segment->bytes().data(), pages);
  if (!readable.ok()) return readable.status();
  NodeCopy copy;
  copy.segment_ = *std::move(segment);
  copy.readable_ = *std::move(readable);
  return copy;
}

Status NodeCopy::keep_writable(std::size_t begin_byte, std::size_t end_byte) {
  const std::size_t begin = begin_byte / kPage * kPage;
  const std::size_t end = begin_byte == end_byte ? begin : transport::round_up(end_byte, kPage);
  std::byte* memory = writable();
  if (begin > 0 && mprotect(memory, begin, PROT_NONE) != 0) return refused("mprotect", begin);
  if (end < bytes() && mprotect(memory + end, bytes() - end, PROT_NONE) != 0)
    return refused("mprotect", bytes() - end);
  // Advice only: a kernel without it dumps more, and hands more to children.
  static_cast<void>(madvise(memory, bytes(), MADV_DONTFORK));
  static_cast<void>(madvise(memory, bytes(), MADV_DONTDUMP));
  static_cast<void>(madvise(readable_.get(), bytes(), MADV_DONTDUMP));
  return ok_status();
}

}  // namespace cox::detail
