// SaveProgress is how far the ranks are with a save that they write beside the steps. Every rank
// votes its stage in the ballot of each step (core/ballot.h), so all of them know in the same step
// that all parts are written, and later that rank 0 has published the save; no call is made for it.
//
//   none --begin()--> writing --part_ended()--> written --hear()--> publishing --publish_ended()-->
//   published --hear()--> none
//
// A rank that is not rank 0 has nothing to publish, and goes from written to published. Values and
// decisions only; training thread.
#pragma once

#include <cstdint>

#include "coordinator/core/ballot.h"
#include "coordinator/core/units.h"

namespace cox::detail {

class SaveProgress {
 public:
  enum class Stage : std::uint8_t { none, writing, written, publishing, published };
  enum class Outcome : bool { failed, done };
  // Next says what the ranks do now: `publish` is for rank 0, whose stage is publishing then.
  enum class Next : std::uint8_t { nothing, publish, give_up, end };

  explicit SaveProgress(RankId rank) : rank_(rank) {}

  Stage stage() const { return stage_; }
  bool is_running() const { return stage_ != Stage::none; }

  // REQUIRES: no save is running. All ranks call it between the same two steps.
  void begin();
  void part_ended(Outcome outcome);
  void publish_ended(Outcome outcome);
  // The save is of a state that was given up. All ranks call it between the same two steps.
  void cancel() { is_cancelled_ = true; }

  void vote(StepBallot& ballot) const;
  // Takes over the merged ballot.
  Next hear(const StepBallot& merged);
  // Takes over what the ranks have agreed on by a call: whether all parts are written.
  Next parts_agreed(Outcome outcome);
  void end() { stage_ = Stage::none; }

 private:
  const RankId rank_;
  Stage stage_ = Stage::none;
  bool has_failed_ = false;  // this rank's work
  bool is_cancelled_ = false;
};

}  // namespace cox::detail
