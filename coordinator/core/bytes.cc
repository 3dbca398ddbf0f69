#include "coordinator/core/bytes.h"

#include <array>

namespace cox {

void ByteWriter::little_endian(std::uint64_t value, std::size_t count) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  append(std::span(bytes).first(count));
}

void ByteWriter::varint(std::uint64_t value) {
  while (value >= 0x80) {
    u8(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  u8(static_cast<std::uint8_t>(value));
}

void ByteWriter::append(std::span<const std::byte> more) {
  bytes_.insert(bytes_.end(), more.begin(), more.end());
}

void ByteWriter::append(std::string_view more) {
  append(std::as_bytes(std::span(more)));
}

std::string_view ByteWriter::text() const {
  return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

void ByteWriter::entry(std::uint8_t type, const ByteWriter& body) {
  u8(type);
  varint(body.size());
  append(body.bytes());
}

void ByteReader::fail() {
  failed_ = true;
  rest_ = {};
}

std::span<const std::byte> ByteReader::take(std::uint64_t count) {
  if (count > rest_.size()) {
    fail();
    return {};
  }
  const auto taken = rest_.first(static_cast<std::size_t>(count));
  rest_ = rest_.subspan(taken.size());
  return taken;
}

std::uint64_t ByteReader::little_endian(std::size_t count) {
  std::uint64_t value = 0;
  int shift = 0;
  for (const std::byte b : take(count)) {
    value |= std::to_integer<std::uint64_t>(b) << shift;
    shift += 8;
  }
  return value;
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
