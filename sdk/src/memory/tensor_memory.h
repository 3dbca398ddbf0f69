// TensorMemory reads the live and peak bytes of one device's tensors. On the CPU our own allocator
// counts them, once installed (counting_allocator.h). On a device LibTorch's caching allocator
// counts them, in blocks of 512 bytes. Both count requests and frees in the order of the host's
// calls, so no reading waits for the device. A value; any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {

// DeviceHeap is a snapshot of a device's caching allocator.
struct DeviceHeap {
  MemoryCount tensors;
  MemoryCount reserved;                   // used and unused memory of the device
  std::int64_t active_bytes = 0;          // in tensors, or freed and still in use by a stream
  std::int64_t inactive_split_bytes = 0;  // unused pieces of partly used segments
};

class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device = c10::Device(c10::DeviceType::CPU)) : device_(device) {}

  c10::Device device() const { return device_; }
  // Returns whether count() has figures.
  bool is_counted() const;
  MemoryCount count() const;
  // Lowers the peak to the bytes that are live now.
  void reset_peak() const;

  // Returns the device's free bytes, shared by all of its processes. Nothing on the CPU. Queries
  // the driver, which takes some 100 us.
  std::optional<std::uint64_t> free_bytes() const;
  // Returns the memory reserved by the device's allocator, used and unused. On the CPU, returns
  // count().
  MemoryCount reserved() const;
  // Returns all counts of the device's allocator. Nothing on the CPU.
  std::optional<DeviceHeap> device_heap() const;

 private:
  c10::Device device_;
};

}  // namespace cox::detail
