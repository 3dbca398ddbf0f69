#include "tests/sdk/checkpoint/counting_heap.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest{0};

}  // namespace

void forget_largest_request() {
  largest = 0;
}
std::size_t largest_request_bytes() {
  return largest;
}

void* operator new(std::size_t bytes) {
  std::size_t seen = largest.load();
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
  if (void* out = std::malloc(bytes > 0 ? bytes : 1)) return out;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  std::free(pointer);
}
