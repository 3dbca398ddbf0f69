// SaveLayout assigns a save's tensors and file names to ranks. One rank writes each tensor that all
// ranks share; the ranks divide these by bytes, in proportion to their paces. Pure functions: equal
// arguments give equal layouts, so ranks need no communication.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/training_position.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint.h"

namespace cox::detail {

// OwnTensors selects the ranks that write tensors of a kind in addition to shared ones.
enum class OwnTensors : std::uint8_t { of_nobody, of_root, of_every_rank };
using OwnTensorsOfKinds = std::array<OwnTensors, kSaveKinds.size()>;

struct SaveLayout {
  struct Kind {
    std::vector<std::size_t> owner;    // the rank that writes each shared tensor
    std::vector<std::size_t> writers;  // the ranks that write a file, ascending
  };
  std::array<Kind, kSaveKinds.size()> kinds;
};

// Gives each tensor of `shared`, the largest first, to the rank with the least to write for its
// pace (Graham, "Bounds on multiprocessing timing anomalies", 1969). `paces`: one for each rank. A
// rank with 0 gets none, but if all have 0, all are equal. REQUIRES: at least one pace.
SaveLayout lay_out(const Checkpoint& shared, const OwnTensorsOfKinds& own,
                   std::span<const std::uint32_t> paces);

// Returns the name of a rank's file of a kind: "model.safetensors" for the only writer, else
// Hugging Face's form, "model-00001-of-00002.safetensors". REQUIRES: `rank` is one of the kind's
// writers.
std::string file_name(const SaveLayout& layout, std::size_t kind, std::size_t rank);

// Returns the index in kSaveKinds by a file's name; kSaveKinds.size() for other names.
std::size_t kind_of_file(std::string_view name);

// PartFile is one rank's file of tensors.
struct PartFile {
  std::string name;
  std::vector<NamedTensor> tensors;
  io::Metadata metadata;
};

// Returns the files of `rank`: the rank's share of `shared`, and `own`. Each file contains the
// step; files of the model contain the whole position and the names removed by separate_tied().
std::vector<PartFile> part_of(const Checkpoint& shared, const Checkpoint& own,
                              const SaveLayout& layout, std::size_t rank);

// Keeps the first name of each of the model's tensors; further names move from `model` to `tied`.
void separate_tied(Checkpoint& state);
// Adds the further names, listed in the metadata of a file, to a model that was read. data_loss if
// a kept tensor is missing.
Status join_tied(const io::Metadata& metadata, std::vector<NamedTensor>& model);

// FileTensor names a tensor and its file.
struct FileTensor {
  std::string file;
  std::string tensor;
  friend auto operator<=>(const FileTensor&, const FileTensor&) = default;
};
// Returns the places of the shared tensors in a whole save.
std::vector<FileTensor> places_of(const Checkpoint& shared, const SaveLayout& layout);

}  // namespace cox::detail
