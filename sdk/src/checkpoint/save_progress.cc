#include "sdk/src/checkpoint/save_progress.h"

namespace cox::detail {
namespace {

// Ballot values of the stages. The least of all ranks counts.
constexpr std::uint64_t kPartOpen = 0;
constexpr std::uint64_t kPartClosed = 1;
constexpr std::uint64_t kAllDone = 2;

std::uint64_t vote_of(SaveProgress::Stage stage) {
  switch (stage) {
    case SaveProgress::Stage::none:
      return ~0ull;
    case SaveProgress::Stage::writing:
      return kPartOpen;
    case SaveProgress::Stage::written:
    case SaveProgress::Stage::publishing:
      return kPartClosed;
    case SaveProgress::Stage::published:
      return kAllDone;
  }
  return ~0ull;
}

}  // namespace

void SaveProgress::begin() {
  stage_ = Stage::writing;
  has_failed_ = is_cancelled_ = false;
}

void SaveProgress::part_ended(Outcome outcome) {
  stage_ = Stage::written;
  has_failed_ = outcome == Outcome::failed;
}

void SaveProgress::publish_ended(Outcome outcome) {
  stage_ = Stage::published;
  has_failed_ = outcome == Outcome::failed;
}

void SaveProgress::vote(StepBallot& ballot) const {
  ballot.save_stage_min = vote_of(stage_);
  if (is_running() && has_failed_)
    ballot.save_failed_max = static_cast<std::uint64_t>(rank_.value()) + 1;
}

SaveProgress::Next SaveProgress::parts_agreed(Outcome outcome) {
  if (outcome == Outcome::failed || is_cancelled_) {
    stage_ = Stage::none;
    return Next::give_up;
  }
  stage_ = rank_ == kRoot ? Stage::publishing : Stage::published;
  return Next::publish;
}

SaveProgress::Next SaveProgress::hear(const StepBallot& merged) {
  if (stage_ == Stage::written && merged.save_stage_min == kPartClosed)
    return parts_agreed(merged.save_failed_max == 0 ? Outcome::done : Outcome::failed);
  if (stage_ != Stage::published || merged.save_stage_min != kAllDone) return Next::nothing;
  stage_ = Stage::none;
  return merged.save_failed_max == 0 ? Next::end : Next::give_up;
}

}  // namespace cox::detail
