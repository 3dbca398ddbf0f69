#include "sdk/src/memory/tensor_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace cox::detail {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

MemoryCount count_of(const c10::CachingAllocator::StatArray& bytes) {
  return {bytes[kAll].current, bytes[kAll].peak};
}

}  // namespace

bool TensorMemory::is_counted() const {
  return !device_.is_cpu() || counting_allocator_installed();
}

MemoryCount TensorMemory::count() const {
  const auto heap = device_heap();
  return heap ? heap->tensors : counted_memory();
}

void TensorMemory::reset_peak() const {
  if (device_.is_cpu()) return reset_counted_peak();
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

MemoryCount TensorMemory::reserved() const {
  const auto heap = device_heap();
  return heap ? heap->reserved : count();
}

std::optional<DeviceHeap> TensorMemory::device_heap() const {
  if (device_.is_cpu()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  return DeviceHeap{count_of(stats.allocated_bytes), count_of(stats.reserved_bytes),
                    stats.active_bytes[kAll].current, stats.inactive_split_bytes[kAll].current};
}

std::optional<std::uint64_t> TensorMemory::free_bytes() const {
  if (device_.is_cpu()) return std::nullopt;
  return c10::getDeviceAllocator(device_.type())->getMemoryInfo(device_.index()).first;
}

}  // namespace cox::detail
