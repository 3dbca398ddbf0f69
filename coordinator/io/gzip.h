// gunzip(): a whole gzip file in memory, for files that people pack. zlib is seen by gzip.cc alone.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::io {

// Whether the bytes begin as a gzip file does (RFC 1952).
bool is_gzip(std::string_view bytes);

// Returns what was packed; several members one after another are one text. Errors: data_loss (not
// gzip, damaged, cut off, something behind the last member), resource_exhausted (more than
// `max_bytes` unpacked). Never holds more than `max_bytes` of the result.
Result<std::string> gunzip(std::string_view bytes, std::size_t max_bytes);

}  // namespace cox::io
