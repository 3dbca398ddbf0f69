// ContentHash tells whether bytes are still the same: files of a save, the weights of two ranks.
// It is XXH3 with 64 bits of the xxHash library: some 10 GB/s on one core, equal on every machine.
// It finds damage and mistakes; it does not protect against forgery. One object, one thread.
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
  // Returns the hash of everything that was added, in the order of adding.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t content_hash(std::span<const std::byte> bytes);
std::uint64_t content_hash(std::string_view text);

// A file's length and the hash of all its bytes.
struct FileContent {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;
};
// Reads the whole file. Errors: those of InputFile.
Result<FileContent> content_of(const std::filesystem::path& file);

// 16 hexadecimal digits in lower case.
std::string to_hex(std::uint64_t hash);
// data_loss when the text is anything else.
Result<std::uint64_t> hash_from_hex(std::string_view text);

}  // namespace cox::io
