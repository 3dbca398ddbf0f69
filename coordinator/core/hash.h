// Checksums and hashes of bytes. crc32 (polynomial 0xEDB88320, as in zlib) detects torn and damaged
// frames, signals and records. FNV-1a with 64 bits distinguishes contents: settings, names of
// files, earlier messages. Neither protects against forgery. Pure; equal on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cox {

std::uint32_t crc32(std::span<const std::byte> bytes);

// FNV-1a over all added bytes, in the order of adding.
class Fnv1a64 {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) add_byte(static_cast<std::uint8_t>(b));
  }
  void add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<std::uint8_t>(c));
  }
  // Adds the eight bytes of the number in little endian.
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8)
      add_byte(static_cast<std::uint8_t>(number >> shift));
  }
  std::uint64_t value() const { return hash_; }

 private:
  void add_byte(std::uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; }

  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace cox
