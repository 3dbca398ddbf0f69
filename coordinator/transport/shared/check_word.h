// CheckWord: eight bytes beside a value in shared memory. A reader uses them to reject stray writes
// of another process. Random damage passes once in 2^64; no protection against forgery. Costs about
// a nanosecond a word. Pure; equal in all processes of one build.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

namespace cox::transport {

class CheckWord {
 public:
  void add(std::uint64_t word) {
    value_ = (std::rotl(value_, 29) ^ word) * 0xD6E8'FEB8'6659'FD93u;
    value_ ^= value_ >> 32;
  }
  // Adds the bytes as words. Pads the last word with zeros.
  void add(std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min(bytes.size() - at, sizeof word));
      add(word);
    }
  }
  // Returns the check. Never 0, because memory holds 0 before the first write.
  std::uint64_t value() const { return value_ == 0 ? 1 : value_; }

 private:
  std::uint64_t value_ = 0x9E37'79B9'7F4A'7C15u;
};

inline std::uint64_t check_word(std::initializer_list<std::uint64_t> words) {
  CheckWord check;
  for (const std::uint64_t word : words) check.add(word);
  return check.value();
}

inline std::uint64_t check_word(std::span<const std::byte> bytes) {
  CheckWord check;
  check.add(bytes);
  return check.value();
}

}  // namespace cox::transport
