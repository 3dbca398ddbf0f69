#include "coordinator/core/bytes.h"

#include <array>
#include <bit>

namespace cox {
namespace {

template <std::size_t kBytes>
void append_little_endian(std::vector<std::byte>& out, std::uint64_t value) {
  std::array<std::byte, kBytes> bytes;
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

void ByteWriter::u32(std::uint32_t value) {
  append_little_endian<4>(bytes_, value);
}

void ByteWriter::u64(std::uint64_t value) {
  append_little_endian<8>(bytes_, value);
}

void ByteWriter::f32(float value) {
  u32(std::bit_cast<std::uint32_t>(value));
}

void ByteWriter::f64(double value) {
  u64(std::bit_cast<std::uint64_t>(value));
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

std::uint8_t ByteReader::u8() {
  return static_cast<std::uint8_t>(little_endian(1));
}

std::uint32_t ByteReader::u32() {
  return static_cast<std::uint32_t>(little_endian(4));
}

std::uint64_t ByteReader::u64() {
  return little_endian(8);
}

float ByteReader::f32() {
  return std::bit_cast<float>(u32());
}

double ByteReader::f64() {
  return std::bit_cast<double>(u64());
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
