// RankSurvey scans the steps of a rank once, in some hundred kilobytes whatever their number. A
// survey counts the events of a picture, notes the times of steps, and collects the ends of
// reductions.
//
//   StepLine (run_record.h) -> RankSurvey -> the steps and the beginning of a picture
//                                        -> ReductionEnds -> shift_between() -> ClockShift
//
// Ranks leave a reduction at the same time, so the ends of the same reductions show the difference
// of two clocks. The end of a reduction is estimated; docs/traces.md ("Clocks") explains the error.
// Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "metrics/analysis/timeline/rank_lanes.h"
#include "metrics/records/run_record.h"

namespace cox::diagnosis {

// Keeps the ends of up to kMost reductions, spread evenly over the run. Rounds are multiples of the
// least sufficient power of two, so that two ranks keep the same rounds.
class ReductionEnds {
 public:
  static constexpr std::size_t kMost = 4096;

  struct End {
    std::int64_t round = 0;
    double seconds = 0;  // Unix time, by the rank's clock
    double doubt_seconds = 0;
  };

  // Scans the next line of the file. Skips lines without a reduction or a timestamp.
  void note(const StepLine& line);
  const std::vector<End>& ends() const { return ends_; }

 private:
  std::vector<End> ends_;
  std::int64_t stride_ = 1;
};

struct ClockShift {
  double offset_seconds = 0;  // to add to the rank's timestamps; 0 if within the error
  double error_seconds = 0;   // error of one moment
  std::size_t rounds = 0;     // compared rounds
};

// Returns the shift of `rank` against the clock of `reference`: the median of the differences. The
// error combines their robust deviation and both doubts. nullopt for fewer than eight common
// rounds.
std::optional<ClockShift> shift_between(const ReductionEnds& reference, const ReductionEnds& rank);

class RankSurvey {
 public:
  struct Place {
    double step = 0;
    double begin_seconds = 0;  // Unix time by the rank's clock, absent() where unknown
  };

  void note(const StepLine& line);
  // Counts the events that the last step leaves open.
  void finish();

  std::uint64_t rows() const { return rows_; }
  std::uint64_t events() const { return events_; }  // RankLanes' events for all scanned steps
  const ReductionEnds& reductions() const { return reductions_; }
  // The start of the first step and the end of the last; absent() if no step has a timestamp.
  double begin_seconds() const { return begin_seconds_; }
  double end_seconds() const { return end_seconds_; }

  // Returns the first of some evenly spread steps behind the fraction `part` of all steps.
  // REQUIRES: rows() > 0, 0 <= part <= 1.
  const Place& behind(double part) const;
  // Returns the first of the spread steps whose number is at least `step`; null if there is none.
  const Place* from(double step) const;

 private:
  static constexpr std::size_t kMostPlaces = 4096;

  std::optional<RankLanes> lanes_;
  ReductionEnds reductions_;
  std::vector<Place> places_;  // every stride-th step
  std::uint64_t stride_ = 1;
  std::uint64_t rows_ = 0;
  std::uint64_t events_ = 0;
  double begin_seconds_ = absent();
  double end_seconds_ = absent();
};

}  // namespace cox::diagnosis
