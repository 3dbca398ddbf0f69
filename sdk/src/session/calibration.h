// Calibration measures a sample of a step before the first one. It asks every actuator whose
// settings leave something to choose to measure its part, in the order of the list, and lets the
// policies decide the plan that the first step runs under. Owned by the session; training thread
// only.
#pragma once

#include <vector>

#include "coordinator/core/reason.h"
#include "coordinator/runtime/control_plane.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/session/control_end.h"
#include "sdk/src/session/membership.h"
#include "sdk/src/session/step_engine.h"

namespace cox::detail {

class Calibration final : private CalibrationHost {
 public:
  Calibration(Membership& job, ControlEnd& control, StepRecorder& recorder, StepEngine& step,
              const ActuatorList& actuators)
      : job_(job), control_(control), recorder_(recorder), step_(step), actuators_(actuators) {}

  // Returns whether run() has anything to measure. It is called in the first step, before its
  // forward pass, or before that step.
  bool is_wanted() const;
  // Takes no part of the open step's time. Collective. Throws cox::Error on all ranks after the
  // first step, and when settings cannot be met on one. REQUIRES: is_wanted().
  void run(const SampleStep& sample);

 private:
  transport::Communicator& ranks() override { return job_.all(); }
  runtime::MeasuredFacts& facts() override { return measured_; }
  std::vector<Reason> learn() override;
  const Plan& plan() const override { return control_.plane().plan(); }
  void forget_run() override;
  void agree(const Status& mine) override { job_.agree(mine); }

  Membership& job_;
  ControlEnd& control_;
  StepRecorder& recorder_;
  StepEngine& step_;
  const ActuatorList& actuators_;
  runtime::MeasuredFacts measured_;
  std::vector<Reason> told_;  // the newest that the policies gave
  bool has_run_ = false;
};

}  // namespace cox::detail
