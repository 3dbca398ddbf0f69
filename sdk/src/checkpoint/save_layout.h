// SaveLayout says which rank writes which tensors of a save, and how its files are called. A tensor
// that all ranks have alike is written by one of them; the ranks divide those by bytes, in
// proportion to their paces. Pure functions: ranks that call them with equal arguments get equal
// layouts, so that no rank asks another.
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

// OwnTensors says who writes tensors of a kind beyond those that all ranks have alike.
enum class OwnTensors : std::uint8_t { of_nobody, of_root, of_every_rank };
using OwnTensorsOfKinds = std::array<OwnTensors, kSaveKinds.size()>;

struct SaveLayout {
  struct Kind {
    std::vector<std::size_t> owner;    // the rank that writes each shared tensor
    std::vector<std::size_t> writers;  // the ranks that write a file, ascending
  };
  std::array<Kind, kSaveKinds.size()> kinds;
};

// Gives each tensor of `shared`, the largest first, to the rank that has then the least to write
// for its pace (Graham, "Bounds on multiprocessing timing anomalies", 1969). `paces`: one a rank;
// a rank with 0 gets none, unless all have 0, which counts as alike. REQUIRES: one at least.
SaveLayout lay_out(const Checkpoint& shared, const OwnTensorsOfKinds& own,
                   std::span<const std::uint32_t> paces);

// Returns the name of the file that a rank writes of a kind: "model.safetensors" where no other
// rank writes one, else Hugging Face's form, "model-00001-of-00002.safetensors".
// REQUIRES: `rank` is one of the kind's writers.
std::string file_name(const SaveLayout& layout, std::size_t kind, std::size_t rank);

// Returns the place in kSaveKinds that a file's name says; kSaveKinds.size() for other names.
std::size_t kind_of_file(std::string_view name);

// PartFile is a file of tensors as one rank writes it.
struct PartFile {
  std::string name;
  std::vector<NamedTensor> tensors;
  io::Metadata metadata;
};

// Returns the files of `rank`: its share of `shared`, and `own`. Each tells the step; those of the
// model tell the whole position and the names that separate_tied() put apart.
std::vector<PartFile> part_of(const Checkpoint& shared, const Checkpoint& own,
                              const SaveLayout& layout, std::size_t rank);

// Keeps the first name of each of the model's tensors; other names of one go from `model` to
// `tied`.
void separate_tied(Checkpoint& state);
// Adds the other names to a model that was read, as the metadata of one of its files have them.
// data_loss where the tensor that was kept is missing.
Status join_tied(const io::Metadata& metadata, std::vector<NamedTensor>& model);

// FileTensor names a tensor and the file that has it.
struct FileTensor {
  std::string file;
  std::string tensor;
  friend auto operator<=>(const FileTensor&, const FileTensor&) = default;
};
// Returns where the shared tensors lie in a whole save.
std::vector<FileTensor> places_of(const Checkpoint& shared, const SaveLayout& layout);

}  // namespace cox::detail
