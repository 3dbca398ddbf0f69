#include "sdk/src/memory/tensor_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace cox::detail {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::CachingDeviceAllocator::DeviceStats stats_of(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

}  // namespace

bool TensorMemory::is_counted() const {
  return !device_.is_cpu() || counting_allocator_installed();
}

MemoryCount TensorMemory::count() const {
  if (device_.is_cpu()) return counted_memory();
  const auto stats = stats_of(device_);
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

void TensorMemory::reset_peak() const {
  if (device_.is_cpu()) return reset_counted_peak();
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

MemoryCount TensorMemory::reserved() const {
  if (device_.is_cpu()) return count();
  const auto stats = stats_of(device_);
  return {stats.reserved_bytes[kAll].current, stats.reserved_bytes[kAll].peak};
}

std::optional<std::uint64_t> TensorMemory::free_bytes() const {
  if (device_.is_cpu()) return std::nullopt;
  return c10::getDeviceAllocator(device_.type())->getMemoryInfo(device_.index()).first;
}

}  // namespace cox::detail
