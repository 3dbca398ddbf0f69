// ByteWriter and ByteReader write little-endian numbers and variable-length integers (7 bits a
// byte, low group first) to a byte string, and read them. The codecs of plans, frames and policy
// states use both. The reader never passes the end: after the first read that does not fit, the
// reader has failed and every further read returns zero. One thread at a time uses an object. The
// reader borrows its bytes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cox {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { little_endian<1>(value); }
  void u16(std::uint16_t value) { little_endian<2>(value); }
  void u32(std::uint32_t value) { little_endian<4>(value); }
  void u64(std::uint64_t value) { little_endian<8>(value); }
  void f32(float value) { u32(std::bit_cast<std::uint32_t>(value)); }  // keeps NaN and -0
  void f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }
  void varint(std::uint64_t value) { size_ += put_varint(value, room(10)); }  // 1 .. 10 bytes
  void append(std::span<const std::byte> more);
  void append(std::string_view more);
  // Writes the type as one byte, the length of the body as a varint, and the body.
  void entry(std::uint8_t type, const ByteWriter& body);
  // Writes the number of bytes from `start` on as a varint in front of those bytes. Returns the
  // number.
  std::size_t insert_length(std::size_t start);
  // Drops the bytes after the first `size`. REQUIRES: `size` <= size().
  void cut(std::size_t size) { size_ = size; }

  std::size_t size() const { return size_; }
  // Return the bytes; valid until the next write.
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }
  std::string_view text() const;

 private:
  static std::size_t put_varint(std::uint64_t value, std::byte* to) {
    std::size_t size = 0;
    for (; value >= 0x80; value >>= 7) to[size++] = static_cast<std::byte>(value | 0x80);
    to[size++] = static_cast<std::byte>(value);
    return size;
  }
  template <std::size_t Count>
  void little_endian(std::uint64_t value) {
    std::byte* const to = room(Count);
    for (std::size_t i = 0; i < Count; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
    size_ += Count;
  }
  // Returns a pointer for the next bytes, with room for `more` bytes.
  std::byte* room(std::size_t more) {
    if (bytes_.size() - size_ < more) grow(more);
    return bytes_.data() + size_;
  }
  void grow(std::size_t more);

  std::vector<std::byte> bytes_;  // has spare room after the first size_
  std::size_t size_ = 0;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian<1>()); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(little_endian<2>()); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(little_endian<4>()); }
  std::uint64_t u64() { return little_endian<8>(); }
  float f32() { return std::bit_cast<float>(u32()); }
  double f64() { return std::bit_cast<double>(u64()); }
  std::uint64_t varint();  // fails on more than 64 bits
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > rest_.size()) {
      fail();
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

  bool failed() const { return failed_; }
  bool at_end() const { return rest_.empty(); }
  // Returns whether everything was read and nothing was missing.
  bool done() const { return !failed_ && rest_.empty(); }
  std::size_t left() const { return rest_.size(); }
  void fail() {
    failed_ = true;
    rest_ = {};
  }

 private:
  template <std::size_t Count>
  std::uint64_t little_endian() {
    std::uint64_t value = 0;
    const std::span<const std::byte> bytes = take(Count);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
  }

  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace cox
