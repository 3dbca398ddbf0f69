// Counts the bytes of CPU tensors exactly, as they were requested: the bytes that are live now and
// their peak. The counting allocator wraps the one that torch has; memory still comes from there
// and goes back there. Once it is installed it serves the whole process. The memory trial and the
// telemetry of a session read the counts. All functions may be called from any thread.
//
// It counts the storages of CPU tensors, and the scratch memory that torch's own oneDNN glue takes
// from the CPU allocator. It does not count tensors made before the installation (freeing them
// changes nothing), a resize_ of such a tensor (its storage remembers its allocator), from_blob,
// pinned memory, scratch memory that oneDNN, MKL and OpenMP allocate by themselves, or the rounding
// and headers of malloc.
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
  std::int64_t peak_bytes = 0;  // the most live bytes at once since the last reset_counted_peak()

  friend bool operator==(const MemoryCount&, const MemoryCount&) = default;
};

// Installs the counting allocator; a second call is a no-op. Returns failed_precondition when
// another library has set an allocator that cannot be wrapped or that does not give way.
// REQUIRES: no other thread allocates tensors meanwhile.
Status install_counting_allocator();

bool counting_allocator_installed();

MemoryCount counted_memory();

// Lowers the peak to the bytes that are live now.
void reset_counted_peak();

// Allocates pages outside of the C library's heap, for tensors that live long and would fragment
// it. Less than 64 KiB comes from the CPU allocator, and so does everything if mmap() fails. The
// bytes are counted like others. Throws c10::Error without memory.
c10::DataPtr allocate_apart(std::size_t bytes);

// AddressTable remembers how many bytes were requested at which address, for the counting
// allocator. It is a map in parts, each with its own lock, so that threads seldom meet. Any thread
// may call any function.
class AddressTable {
 public:
  // Returns the bytes that `address` had before, 0 for a new address. Throws std::bad_alloc and
  // then leaves the table unchanged. REQUIRES: address is not null, bytes > 0.
  std::int64_t insert(const void* address, std::int64_t bytes);
  // Forgets the address and returns its bytes, 0 for an unknown address.
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
