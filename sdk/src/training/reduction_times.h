// ReductionTimes measures the reduction of a Reducer's gradients on this rank: when a step's
// backward pass ran, and when each bucket was summed. The times go into the step's report, into
// some rows of the run directory, and into the search for a layout of buckets. Owned by a Reducer;
// training thread only.
#pragma once

#include "coxswain/reducer.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/device/device_facts.h"
#include "sdk/src/parallel/tuned_reduction.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {

class ReductionTimes final : public Actuator, public Reporting {
 public:
  // Tells whether rows report the time of each bucket's sum. Possible only if the host sees the
  // sum.
  enum class Rows : bool { without, with };
  ReductionTimes(StepRecorder& recorder, Rows rows) : recorder_(recorder), rows_(rows) {}

  void backward_begins() { backward_began_ = Clock::now(); }
  void backward_ended() { backward_ended_ = Clock::now(); }
  // Records that this rank has no backward pass in the step and contributes zeros.
  void no_backward() { backward_began_ = backward_ended_ = Clock::now(); }

  // Records the times of the step just merged. Call it before buckets are laid out anew, because
  // the times belong to the present buckets.
  void take(const TunedReduction& reduction);
  // Returns the cost of the step's buckets on this rank: adding, copying, and the wait after
  // backward.
  double cost_seconds() const;
  const ReductionReport& last() const { return last_; }

  void end_step(const StepEnd& step, StepOutput& output) override;

 private:
  StepRecorder& recorder_;
  const Rows rows_;
  Clock::time_point backward_began_{};
  Clock::time_point backward_ended_{};
  ReductionReport last_;          // report on the last reduced step
  bool is_new_ = false;           // last_ belongs to the open step
  metrics::StepBuckets buckets_;  // from the newest row with buckets
};

}  // namespace cox::detail
