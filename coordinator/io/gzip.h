// Gzip files, which people pack: whole ones in memory, and piece by piece. zlib is seen by gzip.cc
// alone. Any thread; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/io/file.h"

namespace cox::io {

// Whether the bytes begin as a gzip file does (RFC 1952).
bool is_gzip(std::string_view bytes);

// Returns what was packed; several members one after another are one text. Errors: data_loss (not
// gzip, damaged, cut off, something behind the last member), resource_exhausted (more than
// `max_bytes` unpacked). Never holds more than `max_bytes` of the result.
Result<std::string> gunzip(std::string_view bytes, std::size_t max_bytes);

// The same, piece by piece: what is unpacked comes in pieces of at most 64 KiB, from packed bytes
// that come piece by piece. Use next() as a NextBytes; its errors are those of gunzip() and of
// `packed`.
class GzipPieces {
 public:
  GzipPieces(NextBytes packed, std::uint64_t max_bytes);
  GzipPieces(GzipPieces&&) noexcept;
  ~GzipPieces();

  Result<std::string_view> next();

 private:
  class Inflater;
  std::unique_ptr<Inflater> inflater_;
};

// Opens a file that people named, packed or not, and lets `use` read its unpacked bytes, a megabyte
// at a time. Errors name the file: those of InputFile, GzipPieces and `use`; resource_exhausted for
// more than `max_bytes`, packed or unpacked. Blocks on the disk.
Status with_unpacked(const std::filesystem::path& path, std::uint64_t max_bytes,
                     const std::function<Status(const NextBytes& next)>& use);

}  // namespace cox::io
