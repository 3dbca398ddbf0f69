// Packs numbers of equal width one after another: low bits first, zeros in the unused bits of the
// last byte. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/core/bytes.h"

namespace cox::wire {

// Appends at(0) .. at(count - 1). REQUIRES: width <= 32, and each number fits into `width` bits.
template <class At>
void write_bits(ByteWriter& out, unsigned width, std::size_t count, const At& at) {
  std::uint64_t pending = 0;
  unsigned bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    pending |= static_cast<std::uint64_t>(at(i)) << bits;
    for (bits += width; bits >= 8; bits -= 8) {
      out.u8(static_cast<std::uint8_t>(pending));
      pending >>= 8;
    }
  }
  if (bits > 0) out.u8(static_cast<std::uint8_t>(pending));
}

// Calls set(i, number) for each of `count` numbers. Fails if bytes are missing or the unused bits
// of the last byte are not zero. REQUIRES: width <= 32.
template <class Set>
void read_bits(ByteReader& in, unsigned width, std::size_t count, const Set& set) {
  ByteReader packed(in.take((std::uint64_t{count} * width + 7) / 8));
  if (in.failed()) return;
  std::uint64_t pending = 0;
  unsigned bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; bits < width; bits += 8) pending |= static_cast<std::uint64_t>(packed.u8()) << bits;
    set(i, pending & ((std::uint64_t{1} << width) - 1));
    pending >>= width;
    bits -= width;
  }
  if (pending != 0) in.fail();
}

}  // namespace cox::wire
