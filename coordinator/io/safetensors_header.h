// The header of a safetensors file: 8 bytes of its length (little endian), then that many bytes of
// JSON, which names each tensor with its dtype, its shape and the range of its bytes. Behind it
// lies the data of all tensors without a gap. The SDK reads and writes tensors by it
// (coxswain/safetensors.h); this part needs no LibTorch. The bytes may be hostile: the work and the
// memory of a reader are bounded before it starts. Errors are data_loss. Values and, but for
// read_safetensors_header(), pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::io {

// Limits of a header. The largest open models have some 150,000 tensors, most of them experts of a
// mixture, and they come in many files; an entry takes 120 bytes or so. The format's own limit of
// 100 MB would admit 1.7 million empty tensors, which cost a reader a gigabyte.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = std::uint64_t{32} << 20;
inline constexpr std::size_t kMaxSafetensorsTensors = std::size_t{1} << 18;
inline constexpr std::size_t kMaxSafetensorsDimensions = 64;

// A number format of tensors, in the format's spelling.
struct SafetensorsDtype {
  std::string_view name;
  std::uint64_t bytes;  // of an element
};
inline constexpr std::array<SafetensorsDtype, 16> kSafetensorsDtypes = {{{"BOOL", 1},
                                                                         {"U8", 1},
                                                                         {"I8", 1},
                                                                         {"F8_E4M3", 1},
                                                                         {"F8_E5M2", 1},
                                                                         {"U16", 2},
                                                                         {"I16", 2},
                                                                         {"F16", 2},
                                                                         {"BF16", 2},
                                                                         {"U32", 4},
                                                                         {"I32", 4},
                                                                         {"F32", 4},
                                                                         {"U64", 8},
                                                                         {"I64", 8},
                                                                         {"F64", 8},
                                                                         {"C64", 8}}};

struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // a name of kSafetensorsDtypes
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by begin, then by end, then by name
  std::map<std::string, std::string> metadata;
};

// Checks the length field against the limit and the file. `file_bytes` is the whole size on disk.
Status check_safetensors_length(std::uint64_t header_bytes, std::uint64_t file_bytes);

// Parses and checks everything: known dtypes, shapes whose size in bytes is exactly their range,
// ranges that cover `data_bytes` once each without gap or overlap and start on a multiple of the
// element size, unique names, no more tensors and dimensions than the limits.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

class InputFile;
struct PlacedHeader {
  SafetensorsHeader header;
  std::uint64_t data_offset = 0;  // of the data, from the start of the file
};
// Reads the header of an open file, and checks it as above. Blocks on the disk.
Result<PlacedHeader> read_safetensors_header(const InputFile& file);

// Returns the JSON of a header in the order of its entries, padded with spaces so that 8 + its size
// is a multiple of 8. REQUIRES: names, metadata keys and values are UTF-8.
std::string format_safetensors_header(const SafetensorsHeader& header);

// Returns the JSON by which Hugging Face's readers find tensors that lie in several files:
// `file_of` has the file of each tensor, and all of them together have `bytes`.
std::string format_safetensors_index(const std::map<std::string, std::string>& file_of,
                                     std::uint64_t bytes);

}  // namespace cox::io
