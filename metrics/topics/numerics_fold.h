// NumericsFold makes the NumericsView from StepRecords, round by round. A value that a round does
// not report stays as it was last known. Only the recording thread of telemetry uses it; a view
// that was handed out never changes.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/decide/record.h"
#include "metrics/topics/numerics.h"

namespace cox::metrics {

class NumericsFold {
 public:
  // Returns the view after `record`, the same pointer where the record has nothing new.
  std::shared_ptr<const NumericsView> add(const StepRecord& record);

 private:
  void follow_plan(const StepRecord& record, NumericsView& view);
  void put_in_force(const std::vector<Precision>& formats, RoundId round, NumericsView& view);
  bool is_news(const StepRecord& record, float loss_scale) const;

  std::shared_ptr<const NumericsView> view_ = std::make_shared<const NumericsView>();
  PlanId plan_{};  // newest seen
  bool has_plan_ = false;
  bool is_in_force_ = false;        // that plan
  std::vector<Precision> waiting_;  // its formats, until it is in force
};

}  // namespace cox::metrics
