// BlockCosts: what the blocks of the model cost, from the profiles that ranks send on their
// signals: of each block the profile that takes longest on any rank, since the slowest rank
// decides. Plain value; folding in a round's signals is pure.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/core/step_signals.h"

namespace cox::metrics {

struct BlockCost {
  bool is_known = false;
  RankId rank{-1};  // whose profile this is
  BlockProfile profile;
};
using BlockCosts = std::vector<BlockCost>;  // one per block of the job

// `costs` with the profiles of one round; the same pointer when the round carried none. Profiles of
// blocks that the job does not have are left out.
std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals);

}  // namespace cox::metrics
