// LoopStages tracks the stage of an adopted loop within its step, and books each stage's time on
// the step's phases. The stages follow from the loop's operators and backward passes:
//
//   between -> forward -> backward -> accumulated -> updating -> between (or forward again)
//
// A write to a parameter after gradients were added belongs to the optimizer. The update began
// before the write, with the first operator with gradients off, because an optimizer may first
// change its momentum. The update ends with the last operator on a parameter. The time from there
// to the next forward pass counts as loading data. Owned by Adoption; training thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

class LoopStages {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Stage : std::uint8_t { between, forward, backward, accumulated, updating };

  explicit LoopStages(StepRecorder& recorder) : recorder_(recorder) {}

  Stage stage() const { return stage_; }
  bool is(Stage stage) const { return stage_ == stage; }
  // Begins a stage at `when`; the time before `when` belongs to the previous stage.
  void change(Stage stage, Time when);

  // Records, in stage accumulated, an operator with gradients off, which may write to a parameter.
  void operator_ran() {
    if (!update_since_) update_since_ = now();
  }
  // Record and read, in stage forward, that the running operator may write to a parameter.
  void expect_write() { expects_write_ = true; }
  bool expects_write() const { return expects_write_; }
  bool take_expected_write() { return std::exchange(expects_write_, false); }
  // Begins stage updating: after stage accumulated with the operator noted there, after stage
  // forward at once.
  void parameter_written();
  // Records, in stage updating, that an operator with gradients off writes to a parameter or only
  // reads one. An evaluation reads, and so does a forward pass that backward() recomputes.
  enum class Access : std::uint8_t { read, write };
  void note_access(Access access);
  // Returns whether parameters were read since the last write.
  bool is_read_anew() const { return stage_ == Stage::updating && read_since_ > last_update_; }
  Time read_since() const { return read_since_; }

  static Time now() { return std::chrono::steady_clock::now(); }

 private:
  StepRecorder& recorder_;
  Stage stage_ = Stage::between;
  std::optional<Time> update_since_;  // first operator with gradients off after backward()
  bool expects_write_ = false;
  Time last_update_{};
  Time read_since_{};  // later than last_update_: parameters were read with gradients off
};

}  // namespace cox::detail
