// NoMemory denies further memory to this process during its lifetime: from the system, and from the
// free memory of the heap. The destructor frees the blocks. Use NoMemory in a process of its own.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <new>

class NoMemory {
 public:
  NoMemory() {
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit none{1, before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
    for (std::size_t bytes = std::size_t{1} << 24; bytes >= sizeof(Block); bytes /= 2) {
      while (void* memory = std::malloc(bytes)) blocks_ = new (memory) Block{blocks_};
    }
  }
  ~NoMemory() {
    ::setrlimit(RLIMIT_AS, &before_);
    while (blocks_ != nullptr) {
      Block* const next = blocks_->next;
      std::free(blocks_);
      blocks_ = next;
    }
  }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

 private:
  struct Block {
    Block* next = nullptr;
  };

  rlimit before_{};
  Block* blocks_ = nullptr;
};
