// Calibration: what is measured before the first step, on a sample of it. Asks every actuator whose
// settings leave something to choose to measure its part, in their order, and lets the policies
// decide the plan that the first step runs under. Owned by the session; training thread only.
#pragma once

#include "coordinator/runtime/control_plane.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/open_step.h"

namespace cox::detail {

class Calibration final : private CalibrationHost {
 public:
  Calibration(Membership& job, ControlEnd& control, OpenStep& step, const ActuatorList& actuators)
      : job_(job), control_(control), step_(step), actuators_(actuators) {}

  // Whether run() has anything to measure; it is to be called in the first step, before its forward
  // pass, or before that step.
  bool is_wanted() const;
  // Takes no part of the open step's time. Collective. Throws cox::Error on all ranks after the
  // first step, and when settings cannot be met on one. REQUIRES: is_wanted().
  void run(const SampleStep& sample);

 private:
  Ranks ranks() override { return job_.ranks(); }
  runtime::MeasuredFacts& facts() override { return measured_; }
  std::vector<Reason> learn() override;
  const Plan& plan() const override { return control_.plane().plan(); }
  void forget_run() override;
  void agree(const Status& mine) override { job_.agree(mine); }

  Membership& job_;
  ControlEnd& control_;
  OpenStep& step_;
  const ActuatorList& actuators_;
  runtime::MeasuredFacts measured_;
  std::vector<Reason> told_;  // the newest that the policies gave
  bool has_run_ = false;
};

}  // namespace cox::detail
