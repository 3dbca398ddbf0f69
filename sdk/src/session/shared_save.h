// SharedSave writes one save after another, each together with all ranks. Every rank writes its
// part, on a thread of its own or at once; then rank 0 publishes the save. The ballots of steps
// carry each rank's progress (SaveProgress), and compare the bits of the saved state. Owned by the
// class that decides when to save; training thread only; collective calls say so.
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
  // Adds itself to the actuators of the session. REQUIRES: `state` outlives the SharedSave.
  explicit SharedSave(SessionState& state);
  // Calls finish() for a running save, as the end of a session does, and logs a lost save on rank
  // 0. While an exception is in flight, waits for the thread only.
  ~SharedSave();
  SharedSave(const SharedSave&) = delete;
  SharedSave& operator=(const SharedSave&) = delete;

  enum class Where : bool { here, beside_steps };
  struct Work {
    CheckpointFolder& folder;  // outlives the save
    SaveTicket ticket;
    WholeSave whole;         // rank 0's
    SavePart part;           // this rank's; for `beside_steps` in copies
    Status prepared;         // an error abandons the save before writing
    std::uint32_t keep = 1;  // number of saves to keep, including this one
  };
  // Begins a save on all ranks, between the same two steps. REQUIRES: no save is running.
  void begin(Work work, Where where);
  bool is_running() const { return progress_.is_running(); }
  // Sets the bits of the saved state, which the next ballot or finish() compares.
  void compare(std::uint64_t bits) { bits_ = bits; }
  // Waits until the save is complete. Returns the same status on all ranks. Collective. REQUIRES: a
  // save is running.
  Status finish();
  // Cancels the save, because all ranks abandoned the state that is saved.
  void cancel() { progress_.cancel(); }
  // Records a save that all ranks refused before it was begun.
  void lose(Status why) { lost_ = std::move(why); }
  // Returns why the newest save was lost, the same on all ranks; ok while nothing is known.
  const Status& lost() const { return lost_; }

  const char* name() const override { return "the state that was saved"; }
  EqualBits equal_bits() const override;
  void vote(StepBallot& ballot) override;
  void hear(const StepBallot& merged) override;
  // Waits for the thread, because it uses globals that exit() destroys. Leaves nothing to compare.
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
  std::optional<Work> work_;           // the newest save, without its part
  std::optional<std::uint64_t> bits_;  // empty once compared
  SaveProgress progress_;
  Status outcome_;  // this rank's work
  Status lost_;
  mutable io::WorkThread thread_;
  AddedActuator<SharedSave> added_;
};

}  // namespace cox::detail
