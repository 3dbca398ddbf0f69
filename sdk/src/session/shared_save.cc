#include "sdk/src/session/shared_save.h"

#include <exception>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

SaveProgress::Outcome outcome_of(const Status& status) {
  return status.ok() ? SaveProgress::Outcome::done : SaveProgress::Outcome::failed;
}

// Moments that are not finite would spoil the weights of a resumed job. An option may be infinite.
Status check_finite(const SavePart& part) {
  for (const PartFile& file : part.files) {
    if (kind_of_file(file.name) != kOptimizerKind) continue;
    for (const NamedTensor& each : file.tensors) {
      if (each.name.starts_with("options.")) continue;
      if (scan(each.tensor, ScanKind::extent).nonfinite == 0) continue;
      return failed_precondition("save: expected finite state of the optimizer, found that ",
                                 each.name, " is not finite; nothing is saved");
    }
  }
  return ok_status();
}

}  // namespace

SharedSave::SharedSave(SessionState& state)
    : state_(state), progress_(state.job().rank()), added_(state.actuators(), *this) {}

SharedSave::~SharedSave() {
  try {
    const auto named = state_.job().world().name_calls("the end of a save");
    if (is_running() && std::uncaught_exceptions() == 0) {
      const Status finished = finish();
      if (!finished.ok() && state_.job().is_root()) state_.job().log().error(finished.message());
    }
  } catch (const std::exception& error) {
    state_.job().log().error(error.what());
  }
  thread_.wait();
}

void SharedSave::begin(Work work, Where where) {
  outcome_ = work.prepared;
  lost_ = ok_status();
  SavePart part = std::move(work.part);
  work_.emplace(std::move(work));
  progress_.begin();
  // A single rank needs no ballot to know that all parts are complete.
  auto write = [work = *work_, part = std::move(part), is_alone = is_alone()] {
    Status written = work.prepared;
    if (written.ok()) written = check_finite(part);
    if (written.ok()) written = work.folder.write_part(work.ticket, part);
    if (written.ok() && is_alone) written = work.folder.publish(work.ticket, work.whole, work.keep);
    return written;
  };
  if (where == Where::here) return note(write());
  thread_.begin(std::move(write));
}

EqualBits SharedSave::equal_bits() const {
  if (!bits_) return {};
  return {"the state that was saved (weights, and the loop's counters)", *bits_};
}

void SharedSave::vote(StepBallot& ballot) {
  take_outcome();
  progress_.vote(ballot);
}

// Only one rank logs why a save is lost.
void SharedSave::hear(const StepBallot& merged) {
  bits_.reset();
  const SaveProgress::Next next = progress_.hear(merged);
  const std::uint64_t failed = merged.save_failed_max;
  if (next == SaveProgress::Next::give_up && failed > 0) {
    lost_ = failed_precondition("save of step ", work_->ticket.step, ": given up, because rank ",
                                failed - 1,
                                " could not write its part; the log of that rank has the cause");
    const auto rank = static_cast<std::uint64_t>(state_.job().rank().value());
    if (rank + 1 == failed) state_.job().log().error(outcome_.message());
  }
  follow(next);
}

// Records the outcome of this rank's work, if the thread has finished.
void SharedSave::take_outcome() {
  if (const auto outcome = thread_.take_outcome()) note(*outcome);
}

void SharedSave::note(const Status& outcome) {
  outcome_ = outcome;
  if (progress_.stage() == SaveProgress::Stage::publishing)
    return progress_.publish_ended(outcome_of(outcome));
  progress_.part_ended(outcome_of(outcome));
  if (!is_alone() || !outcome.ok()) return;
  static_cast<void>(progress_.parts_agreed(SaveProgress::Outcome::done));
  progress_.publish_ended(SaveProgress::Outcome::done);
}

// Publishing writes a manifest and names, and copies no state.
void SharedSave::follow(SaveProgress::Next next) {
  if (!state_.job().is_root()) return;
  if (next == SaveProgress::Next::give_up) work_->folder.give_up(work_->ticket);
  if (next != SaveProgress::Next::publish) return;
  thread_.begin(
      [work = *work_] { return work.folder.publish(work.ticket, work.whole, work.keep); });
}

// Compares at once, because no ballot may have compared the newest save yet.
Status SharedSave::compare_now() {
  if (!bits_) return ok_status();
  const std::string ranks = ranks_that_differ(state_.job().gather(*std::exchange(bits_, {})));
  if (ranks.empty()) return ok_status();
  return failed_precondition("save: expected the same state on all ranks, found that rank ", ranks,
                             " differs from rank 0; nothing is saved");
}

Status SharedSave::finish() {
  const WaitingScope waiting(state_.recorder());
  const auto agreed = [this](const Status& mine) {
    return agree_on_status(state_.job().all(), mine, state_.job().world().between_polls());
  };
  const Status equal = compare_now();
  thread_.wait();
  take_outcome();
  if (progress_.stage() == SaveProgress::Stage::written) {
    lost_ = agreed(equal.ok() ? outcome_ : equal);
    const auto next = progress_.parts_agreed(outcome_of(lost_));
    follow(next);
    if (next == SaveProgress::Next::give_up) return lost_;
  }
  thread_.wait();
  take_outcome();
  lost_ = agreed(outcome_);
  progress_.end();
  return lost_;
}

}  // namespace cox::detail
