#include "coordinator/core/bytes.h"

#include <algorithm>

namespace cox {

void ByteWriter::grow(std::size_t more) {
  bytes_.resize(std::max(size_ + more, 2 * bytes_.size()));
}

void ByteWriter::append(std::span<const std::byte> more) {
  if (more.empty()) return;
  std::memcpy(room(more.size()), more.data(), more.size());
  size_ += more.size();
}

void ByteWriter::append(std::string_view more) {
  append(std::as_bytes(std::span(more)));
}

std::string_view ByteWriter::text() const {
  return {reinterpret_cast<const char*>(bytes_.data()), size_};
}

void ByteWriter::entry(std::uint8_t type, const ByteWriter& body) {
  u8(type);
  varint(body.size());
  append(body.bytes());
}

std::size_t ByteWriter::insert_length(std::size_t start) {
  const std::size_t size = size_ - start;
  std::array<std::byte, 10> length;
  const std::size_t more = put_varint(size, length.data());
  room(more);
  std::byte* const at = bytes_.data() + start;
  std::memmove(at + more, at, size);
  std::memcpy(at, length.data(), more);
  size_ += more;
  return size;
}

std::uint64_t ByteReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint64_t byte = u8();
    if (failed_ || (shift == 63 && byte > 1)) break;
    value |= (byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail();
  return 0;
}

}  // namespace cox
