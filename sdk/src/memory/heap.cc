#include "sdk/src/memory/heap.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace cox::detail {
namespace {

constexpr int kLeastReturned = 2 << 20;
constexpr int kLargestOnHeap = 32 << 20;  // the most that glibc accepts
constexpr int kNeverTrim = -1;

bool is_configured_by_environment() {
  constexpr std::array kNames = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
                                 "GLIBC_TUNABLES"};
  return std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

bool configure_heap(FreedBlocks freed) {
  if (is_configured_by_environment()) return false;
  if (freed == FreedBlocks::returned) return mallopt(M_MMAP_THRESHOLD, kLeastReturned) == 1;
  return mallopt(M_MMAP_THRESHOLD, kLargestOnHeap) == 1 &&
         mallopt(M_TRIM_THRESHOLD, kNeverTrim) == 1;
}

}  // namespace cox::detail
