// Counts the requested bytes of CPU tensors exactly: live bytes and their peak. The counting
// allocator wraps torch's, which still provides the memory. Once installed, it serves the whole
// process. The memory trial and a session's telemetry read the counts. All functions may be called
// from any thread.
//
// The counts include the storages of CPU tensors, and scratch memory that torch's oneDNN code takes
// from the CPU allocator. The counts leave out:
// - tensors older than the installation, also when such a tensor is resized or freed
// - memory of from_blob, and pinned memory
// - internal scratch memory of oneDNN, MKL and OpenMP
// - the rounding and headers of malloc
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "coordinator/core/status.h"

namespace cox::detail {

struct MemoryCount {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // the most live bytes since the last reset_counted_peak()

  friend bool operator==(const MemoryCount&, const MemoryCount&) = default;
};

// Installs the counting allocator; a second call is a no-op. Returns failed_precondition if another
// library's allocator cannot be wrapped or does not give way. REQUIRES: no other thread allocates
// tensors meanwhile.
Status install_counting_allocator();

bool counting_allocator_installed();

MemoryCount counted_memory();

// Lowers the peak to the bytes that are live now.
void reset_counted_peak();

// Allocates pages outside of the C library's heap, for long-lived tensors that would fragment the
// heap. Allocations below 64 KiB come from the CPU allocator, and so do all if mmap() fails. The
// bytes are counted like others. Throws c10::Error without memory.
c10::DataPtr allocate_apart(std::size_t bytes);

// AddressTable maps addresses to requested bytes, for the counting allocator. The map has parts
// with a lock each, so that threads seldom contend. Any thread may call any function.
class AddressTable {
 public:
  // Returns the old bytes of `address`, 0 for a new address. Throws std::bad_alloc and then leaves
  // the table unchanged. REQUIRES: address is not null, bytes > 0.
  std::int64_t insert(const void* address, std::int64_t bytes);
  // Removes the address and returns its bytes, 0 for an unknown address.
  std::int64_t erase(const void* address) noexcept;

 private:
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<const void*, std::int64_t> bytes;
  };

  Part& part_of(const void* address) noexcept;

  std::array<Part, 16> parts_;
};

}  // namespace cox::detail
