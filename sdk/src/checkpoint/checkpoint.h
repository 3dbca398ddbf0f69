// Checkpoint is the state of a training run in a save: tensors by name, in as many kinds as a save
// has kinds of files, and the position in the run. Values; tensors may be live ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/io/training_position.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

using io::TrainingPosition;

struct Checkpoint {
  TrainingPosition position;
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> reducer;  // empty in saves of earlier versions
  std::vector<NamedTensor> numbers;  // each rank's own state; mostly empty
  std::vector<NamedTensor> parts;    // "PART/TENSOR": the program's additions to its state
  // For writing a save only; empty after reading one.
  std::set<std::string> buffers;  // model's buffers; may differ between ranks, and rank 0's count
  std::map<std::string, std::string> tied;  // other names of tensors of the model
};

// SaveKind is a kind of file with tensors in a save: "model" is model.safetensors, or
// model-00001-of-00002.safetensors and so on.
struct SaveKind {
  const char* name;
  std::vector<NamedTensor> Checkpoint::*tensors;
  bool is_optional;  // written only if it has tensors
};
// The files of the first kind contain the position in the run.
inline constexpr std::array<SaveKind, 5> kSaveKinds = {
    {{"model", &Checkpoint::model, false},
     {"optimizer", &Checkpoint::optimizer, false},
     {"reducer", &Checkpoint::reducer, true},
     {"numbers", &Checkpoint::numbers, true},
     {"parts", &Checkpoint::parts, true}}};
inline constexpr std::size_t kModelKind = 0;
inline constexpr std::size_t kOptimizerKind = 1;
inline constexpr std::size_t kNumbersKind = 3;
inline constexpr std::size_t kPartsKind = 4;

}  // namespace cox::detail
