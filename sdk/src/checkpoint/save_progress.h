// SaveProgress tracks a save that the ranks write beside the steps. Every rank votes its stage in
// the ballot of each step (core/ballot.h). So all ranks learn in the same step that all parts are
// written, and later that rank 0 has published the save, without a call.
//
//   none --begin()--> writing --part_ended()--> written --hear()--> publishing --publish_ended()-->
//   published --hear()--> none
//
// Ranks other than rank 0 publish nothing, and go from written to published. Values and decisions
// only; training thread.
#pragma once

#include <cstdint>

#include "coordinator/core/ballot.h"
#include "coordinator/core/units.h"

namespace cox::detail {

class SaveProgress {
 public:
  enum class Stage : std::uint8_t { none, writing, written, publishing, published };
  enum class Outcome : bool { failed, done };
  // Next is the ranks' next action. `publish` is for rank 0, whose stage is then publishing.
  enum class Next : std::uint8_t { nothing, publish, give_up, end };

  explicit SaveProgress(RankId rank) : rank_(rank) {}

  Stage stage() const { return stage_; }
  bool is_running() const { return stage_ != Stage::none; }

  // REQUIRES: no save is running. Called on all ranks between the same two steps.
  void begin();
  void part_ended(Outcome outcome);
  void publish_ended(Outcome outcome);
  // Cancels a save of a state that was given up. Called on all ranks between the same two steps.
  void cancel() { is_cancelled_ = true; }

  void vote(StepBallot& ballot) const;
  // Receives the merged ballot.
  Next hear(const StepBallot& merged);
  // Receives the ranks' agreement, made by a call, whether all parts are written.
  Next parts_agreed(Outcome outcome);
  void end() { stage_ = Stage::none; }

 private:
  const RankId rank_;
  Stage stage_ = Stage::none;
  bool has_failed_ = false;  // this rank's work
  bool is_cancelled_ = false;
};

}  // namespace cox::detail
