// write_tensor_file(): a safetensors file together with what the manifest of a save says of it.
// The hashes are of the bytes as they are in memory, so that a file which a disk damages while it
// is written is found as well. Blocks on the disk; any thread.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

struct WrittenTensors {
  io::SaveFile file;
  std::vector<io::SavePiece> pieces;  // one a tensor
};

// As write_safetensors() in coxswain/safetensors.h.
Result<WrittenTensors> write_tensor_file(const std::filesystem::path& path,
                                         std::span<const NamedTensor> tensors,
                                         const std::map<std::string, std::string>& metadata);

}  // namespace cox::detail
