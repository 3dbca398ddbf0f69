#include "tests/bench/allocation_count.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local long allocations = 0;
thread_local int open_counts = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  if (open_counts > 0) ++allocations;
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  const std::size_t rounded = (wanted + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace cox::bench {

AllocationCount::AllocationCount() : before_(allocations) {
  ++open_counts;
}
AllocationCount::~AllocationCount() {
  --open_counts;
}
long AllocationCount::so_far() const {
  return allocations - before_;
}

}  // namespace cox::bench
