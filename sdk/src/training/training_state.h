// TrainingState: everything that makes a training run go on as if nothing had happened: parameters,
// buffers, optimizer state and the place in the data. Captured for snapshots (rollback) and saves.
// Random numbers need no state: they are keyed by step and sample. Training thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/training_position.h"
#include "sdk/src/training/optimizer_port.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

// The tensors of a model by name: parameters, then buffers. Live ones.
std::vector<NamedTensor> model_tensors(const torch::nn::Module& model);

struct Snapshot {
  RoundId round{};  // taken after this round
  TrainingPosition position;
  std::vector<NamedTensor> model;  // copies
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> reducer;  // reproducible mode
  std::vector<double> fp8;           // what this rank's delayed scaling remembers
};

Snapshot take_snapshot(RoundId round, const TrainingPosition& position,
                       const torch::nn::Module& model, const OptimizerPort& optimizer);
// Copies back in place: parameters keep their identity.
Status restore(const Snapshot& snapshot, torch::nn::Module& model, OptimizerPort& optimizer);

// The newest snapshots, bounded. Equal on all ranks, since all take them in the same rounds.
class SnapshotShelf {
 public:
  static constexpr std::size_t kKept = 2;
  void put(Snapshot snapshot);
  // The newest one taken before `round`; null when there is none. Forgets newer ones.
  const Snapshot* newest_before(RoundId round);

 private:
  std::vector<Snapshot> snapshots_;  // oldest first
};

}  // namespace cox::detail
