// Published rules that name slow ranks, written from their definitions, for comparison with the
// estimates on the same scenarios. No product code uses them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tests/estimates/detection_trial.h"

namespace cox::test {

enum class PublishedRule : int {
  // NVIDIA resiliency extension, straggler reporting. For each section (here: phase) of a window of
  // 16 steps, score = least median over the ranks / the rank's median. A straggler scores below
  // 0.75 in some section. Leaves out sections below a hundredth of the step.
  relative_score,
  // pytscope 0.2.1, DIST.STRAGGLER. Over all steps so far: z of the count of steps in which a rank
  // was the slowest. A straggler if exactly one rank has z >= 3 and its median compute time is 5 %
  // above the median rank's. Evaluated every 8 steps, from the 8th on.
  count_test,
  // Greyhound: a change of the mean of a rank's own compute time by 10 % or more, with a posterior
  // of 0.9 or more and more than 10 steps on both sides. The posterior is for one change at an
  // unknown step of a window of 64, under normal noise of unknown size (uniform prior on the step,
  // one half on no change, Bayesian information criterion for the means). Evaluated every 5 steps.
  change_point,
};
inline constexpr std::size_t kPublishedRules = 3;
std::string_view to_string(PublishedRule rule);

std::unique_ptr<Rule> make_rule(PublishedRule rule);

}  // namespace cox::test
