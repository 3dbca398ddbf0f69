#include "coordinator/diagnosis/rank_survey.h"

#include <algorithm>

namespace cox::diagnosis {

void RankSurvey::note(const StepLine& line) {
  const double begin = begin_of(line);
  if (is_absent(begin_seconds_)) begin_seconds_ = begin;
  if (!is_absent(begin)) end_seconds_ = line.timestamp;
  if (!lanes_) lanes_.emplace(0, LaneClock{is_absent(begin) ? 0 : begin, 0});
  lanes_->draw(line, [this](const TraceEvent&) { ++events_; });
  reductions_.note(line);
  if (rows_++ % stride_ != 0) return;
  places_.push_back({line.step, begin});
  if (places_.size() <= kMostPlaces) return;
  for (std::size_t i = 0; 2 * i < places_.size(); ++i) places_[i] = places_[2 * i];
  places_.resize((places_.size() + 1) / 2);
  stride_ *= 2;
}

void RankSurvey::finish() {
  if (lanes_) lanes_->finish([this](const TraceEvent&) { ++events_; });
}

const RankSurvey::Place& RankSurvey::behind(double part) const {
  const auto at = static_cast<std::size_t>(part * static_cast<double>(places_.size()));
  return places_[std::min(at + 1, places_.size() - 1)];
}

const RankSurvey::Place* RankSurvey::from(double step) const {
  const auto is_from = [step](const Place& place) { return place.step >= step; };
  const auto found = std::ranges::find_if(places_, is_from);
  return found == places_.end() ? nullptr : &*found;
}

}  // namespace cox::diagnosis
