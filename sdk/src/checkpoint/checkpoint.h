// Checkpoint is the state of a training run that a save holds: tensors by name, in as many kinds as
// a save has kinds of files, and the place in the run. Values; tensors may be live ones.
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
  std::vector<NamedTensor> numbers;  // what each rank remembers of them; mostly empty
  std::vector<NamedTensor> parts;    // "PART/TENSOR": what the program added to its state
  // For a save alone; what is read has neither.
  std::set<std::string> buffers;  // of the model; ranks may differ in them, and rank 0's count
  std::map<std::string, std::string> tied;  // other names of tensors of the model
};

// SaveKind is a kind of file that a save holds tensors in: "model" is model.safetensors, or
// model-00001-of-00002.safetensors and so on.
struct SaveKind {
  const char* name;
  std::vector<NamedTensor> Checkpoint::*tensors;
  bool is_optional;  // only there where it has something in it
};
// The files of the first kind tell the place in the run.
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
