// StepBuffers keeps the buffers of a model that its forward pass may change (running statistics,
// counters, caches) as they were at a step's start, so that the step can be taken again and a step
// that went wrong leaves no NaN behind. Keeps the tensors alive. Copies only when the version of
// some buffer has moved: a model that changes none costs memory and no time. Not by each one's own
// version: torch's BatchNorm writes running statistics without moving theirs, and only its counter
// tells. In reproducible mode BatchStatistics keeps running statistics, and StepBuffers the others.
// Training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "coxswain/session.h"
#include "sdk/src/parallel/batch_statistics.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/step_queue.h"

namespace cox::detail {

class StepBuffers {
 public:
  // Both must outlive this.
  StepBuffers(SessionState& state, torch::nn::Module& model);

  void begin_step();
  // `number`: of the micro-batch in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t number) {
    if (statistics_) statistics_->begin_micro_batch(number);
  }
  void end_micro_batch() {
    if (statistics_) statistics_->end_micro_batch();
  }

  // Makes all buffers what they were at begin_step().
  void put_back();
  // Ends a step that is skipped: does the same for running statistics, and of the others for those
  // that hold a value that is not finite.
  void put_back_nonfinite();
  // Ends a step that is not: makes running statistics those of all ranks. Collective. Throws
  // cox::Error.
  void fold(StepScope& step, const StepShare& share);

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::uint64_t versions() const;

  SessionState& state_;
  std::optional<BatchStatistics> statistics_;  // reproducible mode
  std::vector<at::Tensor> all_;
  std::vector<Kept> kept_;
  std::optional<std::uint64_t> seen_;  // versions that the copies are of
};

}  // namespace cox::detail
