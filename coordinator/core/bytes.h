// ByteWriter and ByteReader write little-endian numbers and variable-length integers (7 bits a
// byte, low group first) to a byte string, and read them. The codecs of plans, frames and policy
// states use both. The reader never passes the end: after the first read that does not fit, the
// reader has failed and every further read returns zero. One thread at a time uses an object. The
// reader borrows its bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cox {

class ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void u16(std::uint16_t value) { little_endian(value, 2); }
  void u32(std::uint32_t value) { little_endian(value, 4); }
  void u64(std::uint64_t value) { little_endian(value, 8); }
  void f32(float value) { u32(std::bit_cast<std::uint32_t>(value)); }  // keeps NaN and -0
  void f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }
  void varint(std::uint64_t value);  // 1 .. 10 bytes
  void append(std::span<const std::byte> more);
  void append(std::string_view more);
  // Writes the type as one byte, the length of the body as a varint, and the body.
  void entry(std::uint8_t type, const ByteWriter& body);

  std::size_t size() const { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::string_view text() const;  // the bytes as a string; valid until the next write

 private:
  void little_endian(std::uint64_t value, std::size_t count);

  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() { return little_endian(8); }
  float f32() { return std::bit_cast<float>(u32()); }
  double f64() { return std::bit_cast<double>(u64()); }
  std::uint64_t varint();  // fails on more than 64 bits
  std::span<const std::byte> take(std::uint64_t count);

  bool failed() const { return failed_; }
  bool at_end() const { return rest_.empty(); }
  // Returns whether everything was read and nothing was missing.
  bool done() const { return !failed_ && rest_.empty(); }
  std::size_t left() const { return rest_.size(); }
  void fail();

 private:
  std::uint64_t little_endian(std::size_t count);

  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace cox
