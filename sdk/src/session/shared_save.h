// SharedSave writes one save after another, each together with all ranks: every rank its part, on a
// thread of its own or at once; then rank 0 publishes it. The ballots of steps carry how far the
// ranks are (SaveProgress), and compare the bits of what was saved. Owned by the class that decides
// when to save; training thread only; calls that are collective say so.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "coordinator/core/ballot.h"
#include "coordinator/core/status.h"
#include "coordinator/io/work_thread.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/checkpoint/save_progress.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {

class SharedSave final : public Comparing, public Voting, public Lasting {
 public:
  // Adds itself to the actuators of the session, which outlives this.
  explicit SharedSave(SessionState& state);
  // Calls finish() for a save that is running, as the end of a session does, and tells on rank 0
  // when it is lost. While an exception is thrown, waits for the thread alone.
  ~SharedSave();
  SharedSave(const SharedSave&) = delete;
  SharedSave& operator=(const SharedSave&) = delete;

  enum class Where : bool { here, beside_steps };
  struct Work {
    CheckpointFolder& folder;  // outlives the save
    SaveTicket ticket;
    WholeSave whole;         // rank 0's
    SavePart part;           // this rank's, for `beside_steps` in copies
    Status prepared;         // an error gives the save up before it is written
    std::uint32_t keep = 1;  // saves, with this one
  };
  // Begins a save on all ranks, between the same two steps. REQUIRES: none is running.
  void begin(Work work, Where where);
  bool is_running() const { return progress_.is_running(); }
  // Lets the next ballot, or finish(), compare these bits of what is saved.
  void compare(std::uint64_t bits) { bits_ = bits; }
  // Waits until the save is there, and returns the same on all ranks. Collective. REQUIRES: one is
  // running.
  Status finish();
  // The state that is saved was given up, on all ranks, so the save is, too.
  void cancel() { progress_.cancel(); }
  // Takes note of a save that was refused before it was begun, on all ranks.
  void lose(Status why) { lost_ = std::move(why); }
  // Returns why the newest save is not there, the same on all ranks; ok while nothing is known.
  const Status& lost() const { return lost_; }

  const char* name() const override { return "the state that was saved"; }
  EqualBits equal_bits() const override;
  void vote(StepBallot& ballot) override;
  void hear(const StepBallot& merged) override;
  // Waits for the thread, because exit() destroys globals that it uses. Leaves nothing to compare.
  EndState end_state() const override {
    thread_.wait();
    return {};
  }

 private:
  bool is_alone() const { return state_.job().world_size() == 1; }
  void take_outcome();
  void note(const Status& outcome);
  void follow(SaveProgress::Next next);
  Status compare_now();  // collective

  SessionState& state_;
  std::optional<Work> work_;           // of the newest save, without its part
  std::optional<std::uint64_t> bits_;  // until they are compared
  SaveProgress progress_;
  Status outcome_;  // of this rank's work
  Status lost_;
  mutable io::WorkThread thread_;
  AddedActuator<SharedSave> added_;
};

}  // namespace cox::detail
