// Memory that is mapped twice: at one address as programs see it, at its shadow address as kernels
// do. Blocks are cut from it first fit.
//
// Thread rule: none of its own; the runtime calls under its lock. shadow() and contains() may be
// called without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace cox::standin {

class TwofoldMemory {
 public:
  // Reserves addresses for `bytes` bytes; memory is used as it is written. `protection` (PROT_NONE,
  // ...) is that of programs. Blocks are multiples of `grain` bytes. Ends the process where the
  // system refuses.
  TwofoldMemory(std::size_t bytes, std::size_t grain, int protection);

  bool contains(const void* address) const;
  void* shadow(const void* address) const;

  // nullptr where no gap is wide enough.
  void* allocate(std::size_t bytes);

  struct Block {
    char* begin = nullptr;
    std::size_t bytes = 0;  // as rounded to the grain
  };
  // The block that holds this address.
  std::optional<Block> find(const void* address) const;
  // Gives its block back and its bytes to the system. REQUIRES: `begin` is where a block begins.
  void release(const void* begin);

  // Sets what a program may do with a block. REQUIRES: the grain is a page or more.
  static void protect(const Block& block, int protection);
  // Lets programs read and write the page of this address for ever.
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
