#include "sdk/src/memory/heap.h"

#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

namespace cox::detail {
namespace {

constexpr std::size_t kBlockBytes = 3 << 20;
constexpr std::size_t kPageBytes = 4096;
constexpr int kBlocks = 12;
constexpr long kPagesOfAStep = kBlocks * kBlockBytes / kPageBytes;

// Fills blocks and frees them, as a step does with its tensors.
void step() {
  std::vector<std::unique_ptr<volatile char[]>> blocks;
  for (int b = 0; b < kBlocks; ++b) {
    blocks.emplace_back(new char[kBlockBytes]);
    for (std::size_t at = 0; at < kBlockBytes; at += kPageBytes) blocks.back()[at] = 1;
  }
}

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Returns the page faults of ten steps that follow two others.
long faults_of_steps() {
  for (int i = 0; i < 2; ++i) step();
  const long before = page_faults();
  for (int i = 0; i < 10; ++i) step();
  return page_faults() - before;
}

#ifndef __SANITIZE_ADDRESS__  // has a heap of its own
TEST_CASE("steps use the pages again that steps before freed, or return them, as they are told") {
  REQUIRE(configure_heap(FreedBlocks::returned));
  CHECK(faults_of_steps() >= 10 * kPagesOfAStep);
  REQUIRE(configure_heap(FreedBlocks::kept));
  CHECK(faults_of_steps() < kPagesOfAStep / 10);
}
#endif

TEST_CASE("an environment that configures the heap is not overruled") {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    CAPTURE(name);
    REQUIRE(setenv(name, "131072", 1) == 0);
    CHECK_FALSE(configure_heap(FreedBlocks::kept));
    CHECK_FALSE(configure_heap(FreedBlocks::returned));
    REQUIRE(unsetenv(name) == 0);
  }
}

}  // namespace
}  // namespace cox::detail
