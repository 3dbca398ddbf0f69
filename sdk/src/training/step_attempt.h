// StepAttempt is one attempt at a trainer's step: samples, passes over the samples, average of the
// gradients, and update.
//
//   take() -> forward() and backward(), or accumulate() -> update()
//
// To repeat a step, the trainer makes a new attempt with the same samples and random numbers. The
// session's step is open while an attempt exists. Owned by a Trainer; training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/training/model_changes.h"
#include "sdk/src/training/rollbacks.h"
#include "sdk/src/training/step_queue.h"

namespace cox::detail {

class StepAttempt {
 public:
  // REQUIRES: all parts outlive the attempt.
  struct Parts {
    Session& session;
    const TrainerOptions& options;
    const Rollbacks& rollbacks;
    ModelUpdate& changes;
    StepBuffers& buffers;
    Reducer& reducer;
    Sharding* sharding;  // null if the job does not shard
  };
  // Opens the session's step.
  explicit StepAttempt(const Parts& parts) : parts_(parts), scope_(parts.session.step()) {}

  // Takes the step's samples. Throws the data set's exceptions.
  void take(TrainingData& data);

  const Batch& batch() const { return samples_.batch; }
  std::uint64_t next_cursor() const { return samples_.share.step.next; }
  StepScope& scope() { return scope_; }

  // These four behave as TrainerStep's functions of the same names (coxswain/trainer.h).
  using LossOf = std::function<at::Tensor(const Batch&)>;
  using WeightOf = std::function<double(const Batch&)>;
  at::Tensor forward(const std::function<at::Tensor()>& loss_of_batch);
  void backward(const at::Tensor& loss, std::optional<double> weight);
  void accumulate(const LossOf& loss_of, const WeightOf& weight_of);
  ReductionOutcome update();

  bool is_updated() const { return is_updated_; }

 private:
  void calibrate(const std::function<at::Tensor()>& sample_loss);
  MicroBatches micro_batches_of_a_step() const;
  at::Tensor run_forward(std::int64_t first, const std::function<at::Tensor()>& loss_of);
  void take_micro_batch(std::uint64_t i, const LossOf& loss_of, const WeightOf& weight_of);
  Batch part_of_batch(const SampleSlice& part) const;
  void check_update() const;
  void settle_buffers(const ReductionOutcome& outcome);

  const Parts parts_;
  StepScope scope_;
  StepQueue::Step samples_;
  bool has_backward_ = false;  // backward() was called, perhaps for no samples
  bool is_updated_ = false;
};

}  // namespace cox::detail
