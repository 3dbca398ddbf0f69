// TensorPlace names the place of a tensor of a save or of a safetensors file, for commands that
// compare, merge and split tensors. Blocks on the disk; any thread.
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

// TensorGroup has the tensors that one file would hold if one rank had written all of them.
struct TensorGroup {
  std::map<std::string, TensorPlace> tensors;
  std::map<std::string, std::string> metadata;  // of the first file with metadata
};
// By the name of the group's file: "model.safetensors".
using TensorGroups = std::map<std::string, TensorGroup>;

// Reads the headers of a safetensors file, or of all such files in a folder. Files of one series,
// "model-00001-of-00002.safetensors" and so on, are one group. Returns data_loss if two files of a
// group have the same tensor, not_found if there is no file.
Result<TensorGroups> tensors_in(const std::filesystem::path& path);

}  // namespace cox::tools
