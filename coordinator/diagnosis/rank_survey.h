// RankSurvey: what a first look at the steps of a rank tells, in some hundred kilobytes whatever
// their number: how many events a picture of them has, where steps stand in time, and the ends of
// reductions, by which clocks are compared.
//
//   StepLine (step_line.h) -> RankSurvey -> the steps, the clocks and the beginning of a picture
//
// Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/diagnosis/clock_alignment.h"
#include "coordinator/diagnosis/rank_lanes.h"
#include "coordinator/diagnosis/run_record.h"
#include "coordinator/diagnosis/step_line.h"

namespace cox::diagnosis {

class RankSurvey {
 public:
  struct Place {
    double step = 0;
    double begin_seconds = 0;  // Unix time by the rank's clock, absent() where unknown
  };

  void note(const StepLine& line);
  // Looks at what the last step leaves open.
  void finish();

  std::uint64_t rows() const { return rows_; }
  std::uint64_t events() const { return events_; }  // of RankLanes for all of these steps
  const ReductionEnds& reductions() const { return reductions_; }
  // When the first step began and the last one ended; absent() where no step has a timestamp.
  double begin_seconds() const { return begin_seconds_; }
  double end_seconds() const { return end_seconds_; }

  // The first of some evenly spread steps before which a `part` of all steps lies. REQUIRES:
  // rows() > 0, 0 <= part <= 1.
  const Place& behind(double part) const;
  // The first of them whose number is not below `step`; null where there is none.
  const Place* from(double step) const;

 private:
  static constexpr std::size_t kMostPlaces = 4096;

  std::optional<RankLanes> lanes_;
  ReductionEnds reductions_;
  std::vector<Place> places_;  // each stride-th step
  std::uint64_t stride_ = 1;
  std::uint64_t rows_ = 0;
  std::uint64_t events_ = 0;
  double begin_seconds_ = absent();
  double end_seconds_ = absent();
};

}  // namespace cox::diagnosis
