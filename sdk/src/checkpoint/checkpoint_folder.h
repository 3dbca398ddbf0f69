// CheckpointFolder: whole saves of a training run in one directory, one folder a save
// (step-000000000123 with model.safetensors, optimizer.safetensors and control.state). A save is
// written beside its final name and renamed as the last act, so every folder of that name is whole;
// what a crash left half written is ignored and removed by the next save. Written by rank 0, read
// by every rank. Blocks on the disk; does not communicate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/decide.h"
#include "coordinator/core/loss_scale.h"
#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

// TrainingPosition says where in a run a state was taken, in the numbers that all ranks share.
struct TrainingPosition {
  std::uint64_t step = 0;    // updates done or skipped
  std::uint64_t cursor = 0;  // samples consumed since the start
  // The cursor is a place in the order that `seed` gives a data set of `samples`.
  std::optional<std::uint64_t> seed;
  std::uint64_t samples = 0;  // 0 = not known yet
  std::uint64_t skipped = 0;
  std::uint64_t rollbacks = 0;
  std::optional<ScalerState> scaler;  // where one was ever at work
};

struct Checkpoint {
  TrainingPosition position;
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> reducer;  // empty in saves of earlier versions
  std::vector<NamedTensor> numbers;  // what each rank remembers of them; mostly empty
};

// Metadata is what a save says about itself beside its tensors: the place in the run, and the loss
// scaler where one was at work. It is kept as text in the header of the model's file.
using Metadata = std::map<std::string, std::string>;
Metadata describe(const Checkpoint& checkpoint);
// Fills the position. data_loss naming the field that is missing or cannot be.
Status read_description(const Metadata& metadata, Checkpoint& checkpoint);

class CheckpointFolder {
 public:
  // Creates the directory. failed_precondition when that, or a probe file in it, is impossible.
  static Result<CheckpointFolder> open(std::filesystem::path directory);

  // Writes a whole save and removes all but the newest `keep`, and those of later steps: a rollback
  // gave them up. After an error (a full disk) the earlier saves are untouched and nothing half
  // written remains.
  Status write(const Checkpoint& checkpoint, const ControlState* control, std::uint32_t keep);

  // The newest save, if there is one.
  std::optional<std::filesystem::path> newest() const;

  static Result<Checkpoint> read(const std::filesystem::path& save);
  // The control state that was saved with it; not_found when there was none.
  static Result<ControlState> read_control(const std::filesystem::path& save);

 private:
  explicit CheckpointFolder(std::filesystem::path directory) : directory_(std::move(directory)) {}
  std::vector<std::filesystem::path> saves() const;  // oldest first
  void remove_leftovers() const;
  void remove_others(const std::filesystem::path& newest, std::uint32_t keep) const;

  std::filesystem::path directory_;
};

// Equal exactly if names, shapes and types are. Compared between the ranks of a job; no save has
// it.
std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors);

}  // namespace cox::detail
