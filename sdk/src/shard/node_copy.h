// NodeCopy is memory that the ranks of a node hold once. Each rank sees it twice: read-only as a
// whole, and writable where its own slice is. A write through the read-only mapping is a fault,
// which fault_names.h explains. Copies of the object share the mappings, which live as long as one
// of them. Training thread.
#pragma once

#include <cstddef>
#include <memory>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::detail {

class NodeCopy {
 public:
  NodeCopy() = default;
  // Returns zeroed memory of all ranks of `node`. Collective and waiting (start-up only).
  // resource_exhausted on every rank where one of them cannot have it.
  static Result<NodeCopy> create(transport::Communicator& node, std::size_t bytes);

  // Leaves only these bytes writable, rounded to whole pages: neighbours may share one. Core dumps
  // leave the memory out, and children of fork() do not have the writable mapping. Returns
  // resource_exhausted where the system refuses.
  Status keep_writable(std::size_t begin_byte, std::size_t end_byte);

  const std::byte* readable() const { return readable_.get(); }
  // REQUIRES: the caller writes to its own slice only.
  std::byte* writable() const { return segment_.bytes().data(); }
  std::size_t bytes() const { return segment_.bytes().size(); }
  // Returns what keeps readable() alive.
  std::shared_ptr<std::byte> reading_owner() const { return readable_; }
  // Returns what keeps writable() alive.
  transport::SharedSegment segment() const { return segment_; }

 private:
  transport::SharedSegment segment_;
  std::shared_ptr<std::byte> readable_;
};

}  // namespace cox::detail
