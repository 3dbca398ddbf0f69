#include "metrics/analysis/timeline/rank_survey.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr std::size_t kLeastRounds = 8;
constexpr double kMostSeconds = 1e11;

double phase(const StepLine& line, std::string_view name) {
  const double seconds = value_in(line, StepSection::phases, name);
  return seconds > 0 && seconds < kMostSeconds ? seconds : 0;
}

}  // namespace

void ReductionEnds::note(const StepLine& line) {
  const double own = value_in(line, StepSection::own, "round");
  const double number = is_absent(own) ? line.step : own;
  const bool is_usable = phase(line, "comm") > 0 && line.timestamp > 0 &&
                         line.timestamp < kMostSeconds && number >= 0 && number < 0x1p53;
  if (!is_usable) return;
  const auto round = static_cast<std::int64_t>(number);
  if (round % stride_ != 0) return;
  const double doubt = phase(line, "other") / 2;
  ends_.push_back({round, line.timestamp - phase(line, "optimizer") - doubt, doubt});
  while (ends_.size() > kMost) {
    stride_ *= 2;
    std::erase_if(ends_, [this](const End& end) { return end.round % stride_ != 0; });
    if (stride_ > (std::int64_t{1} << 52)) ends_.clear();  // the same round, again and again
  }
}

std::optional<ClockShift> shift_between(const ReductionEnds& reference, const ReductionEnds& rank) {
  std::map<std::int64_t, const ReductionEnds::End*> of_reference;
  for (const ReductionEnds::End& end : reference.ends()) of_reference[end.round] = &end;
  std::vector<double> differences;
  std::vector<double> doubts;
  for (const ReductionEnds::End& end : rank.ends()) {
    const auto found = of_reference.find(end.round);
    if (found == of_reference.end()) continue;
    differences.push_back(found->second->seconds - end.seconds);
    doubts.push_back(found->second->doubt_seconds + end.doubt_seconds);
  }
  if (differences.size() < kLeastRounds) return std::nullopt;
  ClockShift out;
  out.rounds = differences.size();
  out.offset_seconds = median_of(differences);
  out.error_seconds = robust_deviation(differences) + median_of(doubts);
  if (std::fabs(out.offset_seconds) > out.error_seconds) return out;
  out.error_seconds += std::fabs(out.offset_seconds);
  out.offset_seconds = 0;
  return out;
}

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
