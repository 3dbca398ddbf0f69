// Counts the bytes of CPU tensors exactly, as they were asked for: what is live now and the most
// there has been. Wraps the allocator that torch has; memory still comes from it and goes back to
// it. Once installed it serves the whole process. All functions may be called from any thread.
//
// Counted: storages of CPU tensors, and scratch that torch's own oneDNN glue takes from the CPU
// allocator. Not counted: tensors made before the installation (their frees change nothing), a
// resize_ of such a tensor (its storage remembers its allocator), from_blob, pinned memory, scratch
// that oneDNN, MKL and OpenMP allocate by themselves, and rounding and headers of malloc.
#pragma once

#include <cstdint>

#include "coordinator/core/status.h"

namespace cox::detail {

struct MemoryCount {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // most live bytes at once since the last reset_counted_peak()

  friend bool operator==(const MemoryCount&, const MemoryCount&) = default;
};

// Again is a no-op. failed_precondition when another library has put an allocator there that cannot
// be wrapped or that does not give way. Not to be called while other threads allocate tensors.
Status install_counting_allocator();

// Gives torch its own allocator back; what is counted stays counted until it is freed. Tensors
// outlive this safely. failed_precondition when ours is not the one in force.
Status uninstall_counting_allocator();

bool counting_allocator_installed();

MemoryCount counted_memory();

// From now on the peak is at least what is live now.
void reset_counted_peak();

}  // namespace cox::detail
