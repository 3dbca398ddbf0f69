// The trainer's state and the parts of its step. trainer.cc is the public face, trainer_restore.cc
// what happens before the first step, after a rollback and at a save. Training thread only; holds
// references to the user's model and optimizer.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "coxswain/reducer.h"
#include "coxswain/sample_plan.h"
#include "coxswain/trainer.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/parallel/batch_statistics.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/step_buffers.h"
#include "sdk/src/training/step_queue.h"
#include "sdk/src/training/training_state.h"

namespace cox {

struct Trainer::Impl {
  Impl(Session& session, torch::nn::Module& model, std::unique_ptr<detail::OptimizerPort> optimizer,
       TrainerOptions options);

  // Of one step, in this order.
  bool wants_another_step() const;
  bool is_stopped() const { return stopping || position.step >= steps_at_stop; }
  void stop();
  void begin_step();
  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch);
  void backward(const at::Tensor& loss, std::optional<double> weight);
  using LossOf = std::function<at::Tensor(const Batch&)>;
  using WeightOf = std::function<double(const Batch&)>;
  void accumulate(const LossOf& loss_of, const WeightOf& weight_of);
  void update();
  void end_step();
  ~Impl();

  // Parts of accumulate() and begin_step().
  void take_micro_batch(std::uint64_t i, const LossOf& loss_of, const WeightOf& weight_of);
  void rehearse(const std::function<at::Tensor()>& sample_loss);
  detail::MicroBatches micro_batches_of_a_step() const;
  detail::ShareRequest share_request() const;
  Batch part_of_batch(const SampleSlice& part) const;
  bool is_reproducible() const { return state.config().reduction.reproducible; }

  // Parts of update().
  void check_update() const;
  void settle_buffers(const ReductionOutcome& outcome);
  void fold_statistics();
  void repeat();
  void apply(const ReductionOutcome& outcome);
  void drop_gradients();
  void keep_snapshot(RoundId round);
  void tell_progress();
  void roll_back_if_ordered();
  void save_if_due();
  void save_now();  // Trainer::save()
  void leave_loop() noexcept;

  // trainer_checks.cc
  void check_is_first() const;
  void check_options() const;                                         // collective
  void check_equal_names() const;                                     // collective
  void check_optimizer() const;                                       // collective
  void check_resumed(const detail::TrainingPosition& resumed) const;  // collective
  void take_dataset(std::int64_t samples);                            // collective

  // trainer_restore.cc
  void open_checkpoints();
  Status check_unused(const CheckpointConfig& config) const;
  struct Resumed {
    std::vector<NamedTensor> reducer;
    std::vector<NamedTensor> numbers;
  };
  Resumed resume();                                     // what is for parts that are made later
  void load(const detail::Checkpoint& checkpoint);      // local
  void adopt(const detail::TrainingPosition& resumed);  // collective
  enum class OnFailure { report, raise };
  void check_folder() const;
  void save(OnFailure on_failure);  // requires: a folder
  Capabilities capabilities() const;
  bool keeps(const at::Tensor& buffer) const;
  std::int64_t bytes_to_come() const;

  Session& session;
  detail::SessionState& state;
  torch::nn::Module& model;
  const std::vector<at::Tensor> parameters;  // of the model, each once
  std::unique_ptr<detail::OptimizerPort> optimizer;
  TrainerOptions options;
  std::optional<detail::StepQueue> queue;
  std::optional<Reducer> reducer;
  std::optional<detail::BatchStatistics> statistics;  // reproducible mode
  std::optional<detail::StepBuffers> buffers;         // those that keeps() says
  std::optional<detail::CheckpointFolder> folder;
  detail::SnapshotShelf snapshots;
  detail::TrainingPosition position;
  TrainingProgress progress;
  std::uint32_t rollback_done = 0;      // the last ticket executed
  std::uint64_t saved_step = ~0ull;     // of the newest save
  bool stopping = false;                // asked from outside
  std::uint64_t steps_at_stop = ~0ull;  // asked by stop()

  // The open step.
  std::optional<StepScope> scope;
  detail::StepQueue::Step step;
  bool has_backward = false;  // it was given, be it for no samples
  bool updated = false;
  bool is_looping = false;          // within the range that steps() gave
  bool save_is_asked = false;       // by save(), for the end of the step
  bool optimizer_is_shown = false;  // its size, which it has after its first step
  TrainerStep step_handle;
};

}  // namespace cox
