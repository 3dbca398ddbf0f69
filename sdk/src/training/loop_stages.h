// LoopStages is where an adopted loop is in its step, as its operators and backward passes show,
// and what each stage takes by the step's phases:
//
//   between -> forward -> backward -> accumulated -> updating -> between (or forward again)
//
// A write to a parameter after gradients were added is the optimizer's. The update began before
// that write, with the first operator with gradients off: an optimizer first changes its momentum,
// say. The update ends with the last operator on a parameter. The time from there to the next
// forward pass counts as getting data. Owned by Adoption; training thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

class LoopStages {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Stage : std::uint8_t { between, forward, backward, accumulated, updating };

  explicit LoopStages(StepRecorder& recorder) : recorder_(recorder) {}

  Stage stage() const { return stage_; }
  bool is(Stage stage) const { return stage_ == stage; }
  // Begins a stage at `when`; the time until then belongs to the stage before.
  void change(Stage stage, Time when);

  // In stage accumulated: an operator runs with gradients off, and perhaps writes to a parameter.
  void operator_ran() {
    if (!update_since_) update_since_ = now();
  }
  void parameter_written();
  // In stage updating: an operator with gradients off writes to a parameter, or only reads it, as
  // an evaluation does, or a forward pass that backward() computes again.
  enum class Access : std::uint8_t { read, write };
  void note_access(Access access);
  // Returns whether parameters were read since the last write.
  bool is_read_anew() const { return stage_ == Stage::updating && read_since_ > last_update_; }
  Time read_since() const { return read_since_; }

  static Time now() { return std::chrono::steady_clock::now(); }

 private:
  StepRecorder& recorder_;
  Stage stage_ = Stage::between;
  std::optional<Time> update_since_;  // once an operator ran with gradients off after backward()
  Time last_update_{};
  Time read_since_{};  // later than that: parameters were read with gradients off
};

}  // namespace cox::detail
