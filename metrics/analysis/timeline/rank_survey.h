// RankSurvey: what a first look at the steps of a rank tells, in some hundred kilobytes whatever
// their number: how many events a picture of them has, where steps stand in time, and the ends of
// reductions, by which clocks are compared.
//
//   StepLine (run_record.h) -> RankSurvey -> the steps and the beginning of a picture
//                                        -> ReductionEnds -> shift_between() -> ClockShift
//
// How far the clocks of two ranks are apart is known from the record alone: ranks leave a reduction
// at the same time, so the ends of the reductions of the same rounds show the difference. A record
// says when a step ended, not when its reduction did. The optimizer's time lies between, and the
// step's `other` time before or after: half of it is the doubt. Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "metrics/analysis/timeline/rank_lanes.h"
#include "metrics/records/run_record.h"

namespace cox::diagnosis {

// The ends of up to kMost reductions, of rounds that are spread evenly over the run: those that are
// multiples of a power of two, the least that will do. So two ranks have the same ones.
class ReductionEnds {
 public:
  static constexpr std::size_t kMost = 4096;

  struct End {
    std::int64_t round = 0;
    double seconds = 0;  // Unix time, by the rank's clock
    double doubt_seconds = 0;
  };

  // Looks at the next line of the file; lines without a reduction or a timestamp are passed over.
  void note(const StepLine& line);
  const std::vector<End>& ends() const { return ends_; }

 private:
  std::vector<End> ends_;
  std::int64_t stride_ = 1;
};

struct ClockShift {
  double offset_seconds = 0;  // to add to the rank's timestamps; 0 where it is within the error
  double error_seconds = 0;   // of one moment
  std::size_t rounds = 0;     // that were compared
};

// Returns what to add to timestamps of `rank` to have them by the clock of `reference`: the median
// of the differences. The error is their robust deviation and the doubt of both. Nothing for fewer
// than eight common rounds.
std::optional<ClockShift> shift_between(const ReductionEnds& reference, const ReductionEnds& rank);

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
