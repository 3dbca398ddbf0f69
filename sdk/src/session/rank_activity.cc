#include "sdk/src/session/rank_activity.h"

#include <utility>

namespace cox::detail {

void RankActivity::begin_step(StepId step, Clock::time_point now) {
  step_ = step;
  is_open_ = true;
  phase_.reset();
  between_ = Activity::outside;
  aside_ = Activity::other;
  tell(now);
}

void RankActivity::end_step(Clock::time_point now) {
  is_open_ = false;
  if (aside_ == Activity::epoch) between_ = Activity::epoch;
  tell(now);
}

Activity RankActivity::do_between_steps(Activity activity, Clock::time_point now) {
  if (!is_open_ && between_ == Activity::saving) saved_ += Seconds(now - between_since_).count();
  between_since_ = now;
  const Activity before = std::exchange(between_, activity);
  if (!is_open_) tell(now);
  return before;
}

Activity RankActivity::do_aside(Activity activity, Clock::time_point now) {
  if (!is_open_) return aside_;
  const Activity before = std::exchange(aside_, activity);
  tell(now);
  return before;
}

double RankActivity::take_saved() {
  return std::exchange(saved_, 0);
}

}  // namespace cox::detail
