// LoopKeeper saves an adopted loop and resumes from its newest save (Session::keep). A save holds
// the adopted models, the optimizers and counters of the call, each rank's random numbers and
// buffers, and state added by Session::add_state. Owned by the program's Sessions; training thread
// only. Calls are collective and throw cox::Error on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/training/adoption.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/rank_rows.h"
#include "sdk/src/training/training_saves.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {

// LoopCounters are the loop's own counters, as a part of its saves.
class LoopCounters {
 public:
  void show(KeptCounter epoch, KeptCounter batch) {
    epoch_ = epoch;
    batch_ = batch;
  }
  std::uint64_t hash() const;  // equal if both counters are equal
  std::vector<NamedTensor> state() const;
  Status load_state(std::span<const NamedTensor> state);

 private:
  std::optional<KeptCounter> epoch_, batch_;  // set by show()
};

class LoopKeeper final : private TrainedState {
 public:
  // Throws if checkpoint.directory cannot be used.
  explicit LoopKeeper(Session session);

  // Adds state to save and restore. Throws after the first keep(), because a resume loads the state
  // there.
  void add_part(std::string_view name, TrainingPart part);
  void add_row(RankRow::Parts parts);

  // Loop is the set of arguments of a call of Session::keep().
  struct Loop {
    Adoption& adoption;
    const std::vector<KeptOptimizer>& optimizers;
    KeptCounter epoch;
    KeptCounter batch;
  };
  void keep(const Loop& loop);
  // Waits for the newest save. Throws if the save could not be written.
  void finish() { saves_.settle(); }

 private:
  Status load_model(std::span<const NamedTensor> saved) const;
  void divide_states() const;
  struct Part {
    std::string name;
    TrainingPart of;
  };
  Checkpoint capture() const override;
  void complete(std::vector<NamedTensor>& optimizer,
                const std::function<bool(std::size_t place)>& keeps) const override;
  bool is_shard(const at::Tensor& tensor) const override;
  Status restore(const Checkpoint& state, Handover handover) override;
  std::uint64_t equal_bits() const override { return counters_.hash(); }
  void show(const Loop& loop);
  void check_is_early() const;
  void check_divisible(const OptimizerPort& optimizer) const;
  void begin(Adoption& adoption);
  void save_if_due(Adoption& adoption);
  bool falls_due();
  void tell_waiting(const Adoption& adoption);
  std::string prefix_of_model(std::size_t model) const;
  std::vector<NamedTensor> model_state() const;
  std::vector<std::unique_ptr<OptimizerPort>> ports() const;
  Adoption::Gradients left_gradients() const;

  Session session_;
  TrainingPosition position_;
  // Named by the newest call of keep():
  const AdoptedModels* models_ = nullptr;
  Sharding* sharding_ = nullptr;  // null if every rank holds all state
  std::vector<KeptOptimizer> optimizers_;
  LoopCounters counters_;
  OwnBuffers buffers_;
  std::vector<Part> parts_;  // until the first call
  TrainingSaves saves_;
  std::vector<std::unique_ptr<Added<RankRow>>> rows_;
  std::uint64_t steps_before_ = 0;  // steps of earlier processes
  std::uint64_t saves_due_ = 0;     // so far, by checkpoint.every_steps
  bool has_begun_ = false;
  bool has_told_waiting_ = false;
};

}  // namespace cox::detail
