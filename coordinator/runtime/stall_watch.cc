#include "coordinator/runtime/stall_watch.h"

#include <algorithm>

#include "coordinator/core/text.h"

namespace cox::runtime {
namespace {

constexpr std::chrono::seconds kStoodStill{5};  // between two calls: the thread did not run

// Returns a key that changes when the log needs a new line: the culprits, and whether they can
// move.
std::string key_of(const Stall& stall) {
  std::string key;
  for (const RankMark& mark : stall.culprits) {
    const bool has_left = mark.activity == Activity::finished;
    key += concat(mark.rank, has_left ? "f" : "", static_cast<int>(mark.process), " ");
  }
  if (stall.culprits.empty()) key = "all";
  return stall.silent.empty() ? key : concat(key, "silent");
}

std::vector<RankId> ranks_of(const std::vector<RankMark>& marks) {
  std::vector<RankId> ranks;
  for (const RankMark& mark : marks) ranks.push_back(mark.rank);
  return ranks;
}

}  // namespace

// After the whole machine or job stood still, marks look older than the waits are.
void StallWatch::note_time(Clock::time_point now) {
  if (!last_time_ || now - *last_time_ > kStoodStill) awake_since_ = now;
  last_time_ = now;
}

void StallWatch::round_closed(Clock::time_point now) {
  note_time(now);
  if (last_round_) {
    const double seconds = Seconds(now - *last_round_).count();
    const bool is_first = typical_seconds_ == 0;
    const double seen = is_first ? seconds : std::min(seconds, 4 * typical_seconds_);
    typical_seconds_ += (is_first ? 1 : 0.2) * (seen - typical_seconds_);
  }
  last_round_ = now;
  if (stall_) look(now);
}

std::vector<RankMark> StallWatch::marks_of_now(Clock::time_point now) const {
  std::vector<RankMark> marks = parts_.read(now);
  const double awake = Seconds(now - awake_since_).count();
  for (RankMark& mark : marks) {
    mark.activity_seconds = std::min(mark.activity_seconds, awake);
    mark.round_seconds = std::min(mark.round_seconds, awake);
    mark.silent_seconds = std::min(mark.silent_seconds, awake);
  }
  return marks;
}

void StallWatch::look(Clock::time_point now) {
  note_time(now);
  const bool was_stalled = stall_.has_value();
  stall_ = find_stall(marks_of_now(now), patience_for(typical_seconds_));
  if (stall_) {
    tell();
    last_ = *stall_;
  } else if (was_stalled) {
    tell_end();
  }
  if (parts_.show && (stall_ || was_stalled)) parts_.show(stall_);
  if (!stall_ || stall_->seconds < parts_.limit.count() || has_given_up_) return;
  has_given_up_ = true;
  if (parts_.give_up) {
    parts_.give_up(concat(text_of(*stall_), "; control.wait_seconds allows ",
                          duration_text(parts_.limit.count())));
  }
}

void StallWatch::tell() {
  const std::string key = key_of(*stall_);
  if (key == told_) return;
  told_ = key;
  const bool is_ordinary = stall_->is_save();
  parts_.log.write(is_ordinary ? LogLevel::info : LogLevel::warning, text_of(*stall_));
}

void StallWatch::tell_end() {
  told_.clear();
  const std::string whom =
      last_.culprits.empty() ? "each other" : text_of(ranks_of(last_.culprits));
  parts_.log.info(concat("the wait for ", whom, " is over after ", fixed(last_.seconds, 1), " s"));
}

}  // namespace cox::runtime
