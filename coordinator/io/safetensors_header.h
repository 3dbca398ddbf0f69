// The header of a safetensors file: 8 bytes of length (little endian), then a JSON text with the
// dtype, shape and byte range of each tensor. The data of all tensors follows without a gap. The
// SDK uses this part to read and write tensors (coxswain/safetensors.h); no LibTorch is needed
// here. The bytes may be hostile, so work and memory are bounded before they are parsed. Errors are
// data_loss. Values and pure functions, except read_safetensors_header().
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

// Limits of a header. The largest open models have about 150,000 tensors, spread over many files;
// most are experts of a mixture. An entry takes about 120 bytes. The format's own limit of 100 MB
// would admit 1.7 million empty tensors, and cost a reader a gigabyte.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = std::uint64_t{32} << 20;
inline constexpr std::size_t kMaxSafetensorsTensors = std::size_t{1} << 18;
inline constexpr std::size_t kMaxSafetensorsDimensions = 64;

// SafetensorsDtype is a number format of tensors, named as in the file.
struct SafetensorsDtype {
  std::string_view name;
  std::uint64_t bytes;  // bytes of one element
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

// Checks the length field against the limit and the file's size. `file_bytes` is the whole size on
// disk.
Status check_safetensors_length(std::uint64_t header_bytes, std::uint64_t file_bytes);

// Parses a header and checks it completely:
//
// - dtypes are known, and names are unique.
// - A shape's size in bytes equals the tensor's byte range.
// - The ranges cover `data_bytes` without gap or overlap, and start on a multiple of the element
//   size.
// - The numbers of tensors and dimensions are within the limits.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

class InputFile;
struct PlacedHeader {
  SafetensorsHeader header;
  std::uint64_t data_offset = 0;  // start of the data, from the start of the file
};
// Reads the header of an open file, with the checks of both functions above. Blocks on the disk.
Result<PlacedHeader> read_safetensors_header(const InputFile& file);

// Returns the JSON of a header, in the order of the entries. Pads the text with spaces, so that 8 +
// the text's size is a multiple of 8. REQUIRES: names, metadata keys and values are UTF-8.
std::string format_safetensors_header(const SafetensorsHeader& header);

// Returns the JSON index by which Hugging Face's readers find tensors in several files. `file_of`
// maps each tensor to its file; `bytes` is the size of all tensors together.
std::string format_safetensors_index(const std::map<std::string, std::string>& file_of,
                                     std::uint64_t bytes);

}  // namespace cox::io
