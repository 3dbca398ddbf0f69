// TrainingState: everything that makes a training run go on as if nothing had happened: parameters,
// buffers, optimizer state and the place in the data. Captured for snapshots (rollback) and saves.
// Random numbers need no state: they are keyed by step and sample. StepBuffers does the same for
// the buffers of one step. Training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
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
  std::vector<NamedTensor> reducer;       // reproducible mode
  std::vector<std::vector<double>> rows;  // what each actuator remembers on this rank
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

// StepBuffers keeps the buffers of a model that its forward pass may change (running statistics,
// counters, caches) as they were at a step's start, so that the step can be taken again and a step
// that went wrong leaves no NaN behind. Keeps the tensors alive. Copies only when the version of
// some buffer has moved: a model that changes none costs memory and no time. Not by each one's own
// version: torch's BatchNorm writes running statistics without moving theirs, and only its counter
// tells.
class StepBuffers {
 public:
  StepBuffers(const std::vector<at::Tensor>& buffers,
              const std::function<bool(const at::Tensor&)>& is_kept);

  void begin_step();
  // As they were at begin_step().
  void put_back();
  // The same for those alone that hold a value that is not finite.
  void put_back_nonfinite();

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::uint64_t versions() const;

  std::vector<at::Tensor> all_;
  std::vector<Kept> kept_;
  std::optional<std::uint64_t> seen_;  // versions that the copies are of
};

}  // namespace cox::detail
