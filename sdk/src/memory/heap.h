// Heap: whether the C library keeps the large blocks that a step frees, or returns them to the
// system. The library's own rule follows sizes, so a plan or a share that changes sizes can make
// every step fault its pages in anew. A loop therefore chooses once, when the loop is made. The
// choice holds for the process and all its threads. Standard library and glibc only.
#pragma once

namespace cox::detail {

enum class FreedBlocks {
  kept,      // steps that follow use the pages again
  returned,  // blocks of 2 MiB and more leave the process when they are freed
};

// Tells the C library what becomes of freed blocks. Does nothing, and returns false, if the
// environment (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES) configures the
// library.
bool configure_heap(FreedBlocks freed);

}  // namespace cox::detail
