// The header of a safetensors file as plain values, apart from tensors and files: what it may say,
// and the checks that make the rest of a load safe. Layout of a file: 8 bytes of header length
// (little endian), that many bytes of JSON, then the data of all tensors without a gap. Pure
// functions; std only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::detail {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own cap
inline constexpr std::size_t kMaxDimensions = 64;

struct TensorEntry {
  std::string name;
  std::string dtype;  // the format's spelling, for example "F32"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  // sorted by begin, then by end, then by name
  std::map<std::string, std::string> metadata;
};

// Bytes of one element, or 0 for a dtype this reader does not know.
std::uint64_t dtype_bytes(std::string_view dtype);

// Checks the length field against the file. `file_bytes` is the whole size on disk.
Status check_header_length(std::uint64_t header_bytes, std::uint64_t file_bytes);

// Parses and checks everything: known dtypes, shapes whose size in bytes is exactly their range,
// ranges that cover `data_bytes` once each without gap or overlap and start on a multiple of the
// element size, unique names.
Result<SafetensorsHeader> parse_header(std::string_view json, std::uint64_t data_bytes);

// The JSON of such a header in the order of `entries`, padded with spaces so that 8 + its size is a
// multiple of 8. Requires: names, metadata keys and values are UTF-8.
std::string format_header(const SafetensorsHeader& header);

}  // namespace cox::detail
