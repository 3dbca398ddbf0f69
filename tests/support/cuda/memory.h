// Memory mapped twice: at a program address, and at a shadow address for kernels. Allocates blocks
// first fit.
//
// Thread rule: the runtime calls under its lock. shadow() and contains() need no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace cox::standin {

class TwofoldMemory {
 public:
  // Reserves addresses for `bytes` bytes; pages are allocated on first write. `protection`
  // (PROT_NONE, ...) applies to program addresses. Blocks are multiples of `grain` bytes. Ends the
  // process if the system refuses.
  TwofoldMemory(std::size_t bytes, std::size_t grain, int protection);

  bool contains(const void* address) const;
  void* shadow(const void* address) const;

  // Returns nullptr if no gap is wide enough.
  void* allocate(std::size_t bytes);

  struct Block {
    char* begin = nullptr;
    std::size_t bytes = 0;  // rounded to the grain
  };
  // Returns the block that holds this address.
  std::optional<Block> find(const void* address) const;
  // Frees a block and returns its bytes to the system. REQUIRES: `begin` is the start of a block.
  void release(const void* begin);

  // Sets a program's access to a block. REQUIRES: the grain is a page or more.
  static void protect(const Block& block, int protection);
  // Lets programs read and write the page of this address permanently.
  static void open_page(const void* address);

  std::size_t used_bytes() const { return used_bytes_; }

 private:
  std::size_t bytes_ = 0;
  std::size_t grain_ = 0;
  int file_ = -1;
  char* program_ = nullptr;
  char* shadow_ = nullptr;
  std::size_t used_bytes_ = 0;
  std::map<std::size_t, std::size_t> blocks_;  // offset to bytes
};

}  // namespace cox::standin
