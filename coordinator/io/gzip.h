// Reads gzip files, which people compress by hand: whole in memory, or piece by piece. Only gzip.cc
// includes zlib. Any thread; one thread per object.
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

// Returns whether the bytes begin like a gzip file (RFC 1952).
bool is_gzip(std::string_view bytes);

// Returns the unpacked bytes. Several members form one text. Errors: data_loss (not gzip, damaged,
// cut off, bytes behind the last member), resource_exhausted (more than `max_bytes` unpacked).
// Never holds more than `max_bytes` of the result.
Result<std::string> gunzip(std::string_view bytes, std::size_t max_bytes);

// GzipPieces unpacks piece by piece. Reads packed bytes from `packed` and returns unpacked pieces
// of at most 64 KiB. Use next() as a NextBytes. Errors: those of gunzip() and of `packed`.
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

// Opens a user's file, packed or not, and lets `use` read the unpacked bytes in pieces of a
// megabyte. Errors name the file: those of InputFile, GzipPieces and `use`, and resource_exhausted
// for more than `max_bytes`, packed or unpacked. Blocks on the disk.
Status with_unpacked(const std::filesystem::path& path, std::uint64_t max_bytes,
                     const std::function<Status(const NextBytes& next)>& use);

}  // namespace cox::io
