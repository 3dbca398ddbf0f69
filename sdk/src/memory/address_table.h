// AddressTable: how many bytes were asked for at which address. An open-addressing table in parts,
// each with its own lock, so that threads seldom meet. It grows with the number of live addresses
// and does not shrink. Any thread may call any function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace cox::detail {

class AddressTable {
 public:
  // Returns the bytes that `address` had before, 0 for a new one. Requires: address not null,
  // bytes > 0. Throws std::bad_alloc, the table then being unchanged.
  std::int64_t insert(const void* address, std::int64_t bytes);
  // Returns the bytes and forgets the address; 0 for one that is unknown.
  std::int64_t erase(const void* address) noexcept;

 private:
  struct Slot {
    const void* address = nullptr;
    std::int64_t bytes = 0;
  };

  struct alignas(64) Part {
    std::mutex mutex;
    std::vector<Slot> slots = std::vector<Slot>(64);  // a power of two, at most half full
    std::size_t used = 0;

    std::size_t find(const void* address) const noexcept;
    void grow();
    void close_gap(std::size_t gap) noexcept;
  };

  Part& part_of(const void* address) noexcept;

  std::array<Part, 16> parts_;
};

}  // namespace cox::detail
