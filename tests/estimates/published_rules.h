// Published rules that name slow ranks, written anew from their definitions, to stand beside the
// estimates on the same scenarios. For comparison only; no product code uses them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tests/estimates/detection_trial.h"

namespace cox::test {

enum class PublishedRule : int {
  // NVIDIA resiliency extension, straggler reporting: for each section (here: phase) of a window
  // of 16 steps, score = least median over the ranks / the rank's median; a straggler scores below
  // 0.75 in some section. Sections below a hundredth of the step are left out.
  relative_score,
  // pytscope 0.2.1, DIST.STRAGGLER: over all steps so far, z of the count of steps in which a rank
  // was the slowest; a straggler if exactly one rank has z >= 3 and its median compute time is 5 %
  // above the median rank's. Evaluated every 8 steps, from the 8th on.
  count_test,
  // Greyhound: a change of the mean of a rank's own compute time with a posterior of 0.9 or more,
  // by
  // 10 % or more, with more than 10 steps on both sides. The posterior is that of one change at an
  // unknown step of a window of 64, under normal noise of unknown size (uniform prior on the step,
  // one half on no change, Bayesian information criterion for the means). Evaluated every 5 steps.
  change_point,
};
inline constexpr std::size_t kPublishedRules = 3;
std::string_view to_string(PublishedRule rule);

std::unique_ptr<Rule> make_rule(PublishedRule rule);

}  // namespace cox::test
