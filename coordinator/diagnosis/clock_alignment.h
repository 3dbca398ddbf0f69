// How far the clocks of two ranks are apart, from the record alone: ranks leave a reduction at the
// same time, so the ends of the reductions of the same rounds show the difference.
//
//   StepLine (step_line.h) -> ReductionEnds, of each rank -> shift_between() -> ClockShift
//
// A record says when a step ended, not when its reduction did. The optimizer's time lies between,
// and the step's `other` time before or after: half of it is the doubt. Pure; plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/diagnosis/step_line.h"

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

}  // namespace cox::diagnosis
