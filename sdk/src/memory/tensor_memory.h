// TensorMemory reads how many bytes the tensors of one device take, now and at most. On the CPU
// they are counted by an allocator of ours, where that is installed (counting_allocator.h); on a
// device LibTorch's caching allocator counts them, in blocks of 512 bytes. Both count when memory
// is asked for and given back, in the order of the host's calls, so nothing waits for the device. A
// value; any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {

// DeviceHeap is what the caching allocator of a device counts at one moment.
struct DeviceHeap {
  MemoryCount tensors;
  MemoryCount reserved;                   // held of the device's memory, used and unused
  std::int64_t active_bytes = 0;          // in tensors, or given back and still in use by a stream
  std::int64_t inactive_split_bytes = 0;  // unused pieces of segments that are partly in use
};

class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device = c10::Device(c10::DeviceType::CPU)) : device_(device) {}

  c10::Device device() const { return device_; }
  // Returns whether count() knows anything.
  bool is_counted() const;
  MemoryCount count() const;
  // Lowers the peak to the bytes that are live now.
  void reset_peak() const;

  // Returns what the device has free, which all of its processes share. Nothing on the CPU. Asks
  // the driver, which takes some 100 us.
  std::optional<std::uint64_t> free_bytes() const;
  // Returns what the device's allocator holds of the device's memory, used and unused; what count()
  // does on the CPU.
  MemoryCount reserved() const;
  // Returns all that the device's allocator counts. Nothing on the CPU.
  std::optional<DeviceHeap> device_heap() const;

 private:
  c10::Device device_;
};

}  // namespace cox::detail
