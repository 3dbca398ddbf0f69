// Reads and writes a safetensors file together with its entries in a save's manifest. A written
// file's hashes are of the bytes in memory, so that later checks also detect damage by the disk.
// Blocks on the disk; any thread.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/named_tensor.h"
#include "coxswain/safetensors.h"

namespace cox::detail {

struct WrittenTensors {
  io::SaveFile file;
  std::vector<io::SavePiece> pieces;  // one for each tensor
};

// As write_safetensors() in coxswain/safetensors.h.
Result<WrittenTensors> write_tensor_file(const std::filesystem::path& path,
                                         std::span<const NamedTensor> tensors,
                                         const std::map<std::string, std::string>& metadata);

// Returns invalid_argument with the first tensor that write_tensor_file() would refuse.
Status check_savable(std::span<const NamedTensor> tensors);

// Returns the tensors that load_into() would refuse: "missing: a; unexpected: b; different: c
// (...)". Empty if all match. REQUIRES: all are defined.
std::string describe_unmatched(std::span<const NamedTensor> targets,
                               std::span<const NamedTensor> source);

// Returns the error that load_into() would return for the same arguments.
Status check_match(std::span<const NamedTensor> targets, std::span<const NamedTensor> source);

struct ReadTensors {
  SafetensorsFile content;
  WrittenTensors found;  // without hashes of pieces; the file's hash is of all bytes
};
// As read_safetensors() in coxswain/safetensors.h. Reads each byte once.
Result<ReadTensors> read_tensor_file(const std::filesystem::path& path);

}  // namespace cox::detail
