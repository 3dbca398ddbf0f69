// ContentHash detects a change of bytes: in files of a save, or between the weights of two ranks.
// Uses the 64-bit XXH3 of the xxHash library: about 10 GB/s on one core, and equal on every
// machine. Finds damage and mistakes; no protection against forgery. One object, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::io {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(std::span<const std::byte> bytes);
  // Returns the hash of all bytes added so far, in the order of adding.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t content_hash(std::span<const std::byte> bytes);
std::uint64_t content_hash(std::string_view text);

// FileContent is a file's length and the hash of all its bytes.
struct FileContent {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;
};
// Returns the content of the whole file. Errors: those of InputFile.
Result<FileContent> content_of(const std::filesystem::path& file);

// Returns 16 hexadecimal digits in lower case.
std::string to_hex(std::uint64_t hash);
// Parses the text of to_hex(). Returns data_loss for any other text.
Result<std::uint64_t> hash_from_hex(std::string_view text);

}  // namespace cox::io
