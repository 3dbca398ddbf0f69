#include "tests/support/cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace cox::standin {
namespace {

char* map(std::size_t bytes, int protection, int file) {
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at != MAP_FAILED) return static_cast<char*>(at);
  std::perror("stand-in CUDA runtime: expected to map memory twice");
  std::abort();
}

}  // namespace

TwofoldMemory::TwofoldMemory(std::size_t bytes, std::size_t grain, int protection)
    : bytes_(bytes), grain_(grain), file_(memfd_create("cox-standin", MFD_CLOEXEC)) {
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    std::perror("stand-in CUDA runtime: expected a file in memory");
    std::abort();
  }
  program_ = map(bytes, protection, file_);
  shadow_ = map(bytes, PROT_READ | PROT_WRITE, file_);
}

bool TwofoldMemory::contains(const void* address) const {
  return address >= program_ && address < program_ + bytes_;
}

void* TwofoldMemory::shadow(const void* address) const {
  return shadow_ + (static_cast<const char*>(address) - program_);
}

void* TwofoldMemory::allocate(std::size_t bytes) {
  const std::size_t wanted = (bytes + grain_ - 1) / grain_ * grain_;
  std::size_t at = 0;
  for (const auto& [offset, size] : blocks_) {
    if (offset - at >= wanted) break;
    at = offset + size;
  }
  if (bytes_ - at < wanted) return nullptr;
  blocks_[at] = wanted;
  used_bytes_ += wanted;
  return program_ + at;
}

std::optional<TwofoldMemory::Block> TwofoldMemory::find(const void* address) const {
  if (!contains(address)) return std::nullopt;
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(address) - program_);
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return std::nullopt;
  --next;
  if (offset >= next->first + next->second) return std::nullopt;
  return Block{program_ + next->first, next->second};
}

void TwofoldMemory::release(const void* begin) {
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(begin) - program_);
  const auto block = blocks_.find(offset);
  used_bytes_ -= block->second;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(block->second));
  blocks_.erase(block);
}

void TwofoldMemory::protect(const Block& block, int protection) {
  if (mprotect(block.begin, block.bytes, protection) == 0) return;
  std::perror("stand-in CUDA runtime: expected to protect pinned memory");
  std::abort();
}

void TwofoldMemory::open_page(const void* address) {
  const auto page = static_cast<std::uintptr_t>(getpagesize());
  char* begin = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(address) / page * page);
  protect({begin, page}, PROT_READ | PROT_WRITE);
}

}  // namespace cox::standin
