// Gzip files, which people pack: whole ones in memory, and piece by piece. zlib is seen by gzip.cc
// alone. Any thread; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace cox::io
