// NonfiniteStreak counts the steps in a row whose update was skipped because a loss or gradient was
// not finite, and ends the job at guard.nonfinite_limit. All ranks count alike, so all end
// together. Owned by a Reducer; training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "coordinator/core/units.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

class NonfiniteStreak {
 public:
  explicit NonfiniteStreak(const Membership& job) : job_(job) {}

  void count_finite() { steps_ = 0; }
  // `look` returns what this rank saw first; it is asked at the start of a streak and may return
  // nothing. `blamed` names the block that was at fault last, it may be empty. Throws cox::Error on
  // all ranks, collectively, when the streak has the length of the limit.
  void count_nonfinite(StepId step, const std::function<std::string()>& look,
                       const std::string& blamed);

 private:
  const Membership& job_;
  std::uint32_t steps_ = 0;
  std::string first_trouble_;  // what this rank saw at the start
};

}  // namespace cox::detail
