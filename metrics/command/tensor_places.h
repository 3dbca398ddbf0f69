// TensorPlace says where a tensor of a save or of a safetensors file lies, for commands that
// compare, merge and split them. Blocks on the disk; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "coordinator/core/status.h"
#include "coordinator/io/safetensors_header.h"

namespace cox::tools {

struct TensorPlace {
  std::filesystem::path file;
  io::SafetensorsEntry entry;
  std::uint64_t offset = 0;  // bytes from the start of the file

  std::uint64_t bytes() const { return entry.end - entry.begin; }
};

// TensorGroup is what would be one file if one rank had written it.
struct TensorGroup {
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> metadata;  // of the first file that has some
};
// By the name of that file: "model.safetensors".
using TensorGroups = std::map<std::string, TensorGroup>;

// Reads the headers of a safetensors file, or of all of them in a folder: files that belong
// together, "model-00001-of-00002.safetensors" and so on, are one group. data_loss where two files
// of a group have the same tensor, not_found where there is none.
Result<TensorGroups> tensors_in(const std::filesystem::path& path);

}  // namespace cox::tools
