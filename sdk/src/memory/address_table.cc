#include "sdk/src/memory/address_table.h"

#include <utility>

namespace cox::detail {
namespace {

// Addresses are multiples of 64; the product spreads the other bits, and its upper half is used.
std::uint64_t hash_of(const void* address) noexcept {
  return (reinterpret_cast<std::uintptr_t>(address) * 0x9E3779B97F4A7C15ULL) >> 32;
}

}  // namespace

AddressTable::Part& AddressTable::part_of(const void* address) noexcept {
  return parts_[(hash_of(address) >> 28) % parts_.size()];
}

// The slot of the address, or the empty one where it would go.
std::size_t AddressTable::Part::find(const void* address) const noexcept {
  const std::size_t mask = slots.size() - 1;
  std::size_t at = hash_of(address) & mask;
  while (slots[at].address != nullptr && slots[at].address != address) at = (at + 1) & mask;
  return at;
}

void AddressTable::Part::grow() {
  const std::vector<Slot> old = std::exchange(slots, std::vector<Slot>(slots.size() * 2));
  for (const Slot& slot : old) {
    if (slot.address != nullptr) slots[find(slot.address)] = slot;
  }
}

// Moves later slots of the same run forward, so that a search never meets a gap in its run.
void AddressTable::Part::close_gap(std::size_t gap) noexcept {
  const std::size_t mask = slots.size() - 1;
  for (std::size_t at = (gap + 1) & mask; slots[at].address != nullptr; at = (at + 1) & mask) {
    const std::size_t home = hash_of(slots[at].address) & mask;
    if (((at - home) & mask) >= ((at - gap) & mask)) {
      slots[gap] = slots[at];
      gap = at;
    }
  }
  slots[gap] = {};
}

std::int64_t AddressTable::insert(const void* address, std::int64_t bytes) {
  Part& part = part_of(address);
  const std::lock_guard lock(part.mutex);
  if ((part.used + 1) * 2 > part.slots.size()) part.grow();
  Slot& slot = part.slots[part.find(address)];
  if (slot.address == nullptr) ++part.used;
  slot.address = address;
  return std::exchange(slot.bytes, bytes);
}

std::int64_t AddressTable::erase(const void* address) noexcept {
  Part& part = part_of(address);
  const std::lock_guard lock(part.mutex);
  const std::size_t at = part.find(address);
  if (part.slots[at].address == nullptr) return 0;
  const std::int64_t bytes = part.slots[at].bytes;
  part.close_gap(at);
  --part.used;
  return bytes;
}

}  // namespace cox::detail
