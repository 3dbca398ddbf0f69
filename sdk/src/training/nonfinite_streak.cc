#include "sdk/src/training/nonfinite_streak.h"

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {

void NonfiniteStreak::count_nonfinite(StepId step, const std::function<std::string()>& look,
                                      const std::string& blamed) {
  if (++steps_ == 1) first_trouble_ = look();
  const std::uint32_t limit = job_.config().guard.nonfinite_limit;
  if (limit == 0 || steps_ < limit) return;
  const std::string block = blamed.empty() ? "" : ", lately in block " + blamed;
  throw Error(failed_precondition(
                  concat("guard.nonfinite_limit: expected a finite step at least every ", limit,
                         " steps, found none since step ", step.value() + 1 - steps_, "; ",
                         first_text(job_.all(), first_trouble_ + block),
                         "; resume from the newest save with a lower learning rate or in fp32")),
              Error::Scope::all_ranks, ExitCode::hopeless);
}

}  // namespace cox::detail
