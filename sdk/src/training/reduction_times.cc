#include "sdk/src/training/reduction_times.h"

#include <algorithm>
#include <utility>

namespace cox::detail {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, Seconds(to - from).count());
}

metrics::StepBuckets buckets_of(const ReductionReport& report, RoundId round) {
  metrics::StepBuckets buckets;
  buckets.round = round;
  const auto from_end = [&](double seconds) {
    return static_cast<float>(seconds - report.backward_seconds);
  };
  for (const BucketReport& each : report.buckets) {
    buckets.add({1, each.bytes, from_end(each.started_seconds), from_end(each.done_seconds)},
                report.buckets.size());
  }
  return buckets;
}

}  // namespace

void ReductionTimes::take(const TunedReduction& reduction) {
  last_.buckets.clear();
  last_.backward_seconds = seconds_between(backward_began_, backward_ended_);
  last_.exposed_seconds = 0;
  is_new_ = reduction.exchange() != nullptr;
  if (!is_new_) return;
  double seconds = 0;
  double exposed = 0;
  for (const auto& [bytes, times] : reduction->sent()) {
    last_.buckets.push_back({bytes, seconds_between(backward_began_, times.started),
                             seconds_between(backward_began_, times.done),
                             Seconds(times.worked).count()});
    last_.exposed_seconds =
        std::max(last_.exposed_seconds, seconds_between(backward_ended_, times.done));
    seconds += seconds_between(times.started, times.done);
    exposed += seconds_between(std::max(times.started, backward_ended_), times.done);
  }
  recorder_.notes().set_reduction(seconds, exposed);
}

double ReductionTimes::cost_seconds() const {
  double seconds = last_.exposed_seconds;
  for (const BucketReport& bucket : last_.buckets) seconds += bucket.worked_seconds;
  return seconds;
}

void ReductionTimes::end_step(const StepEnd& step, StepOutput& output) {
  const bool is_new = std::exchange(is_new_, false);
  const bool is_told = output.row != nullptr && rows_ == Rows::with &&
                       step.round.value() % metrics::StepBuckets::kEveryRounds == 0;
  if (!is_told || !is_new || last_.buckets.empty()) return;
  buckets_ = buckets_of(last_, step.round);
  output.buckets = &buckets_;
}

}  // namespace cox::detail
