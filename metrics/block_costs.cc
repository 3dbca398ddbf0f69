#include "metrics/block_costs.h"

namespace cox::metrics {
namespace {

float seconds(const BlockProfile& profile) {
  return profile.forward_seconds + profile.backward_seconds;
}

}  // namespace

std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals) {
  std::shared_ptr<BlockCosts> changed;
  for (const RankSignal& report : signals.reports) {
    if (report.fragment.kind != FragmentKind::block_profile) continue;
    const auto profile = read_block_profile(report.fragment);
    if (!profile.ok() || profile->block.value() >= blocks) continue;
    if (!changed) {
      changed = costs ? std::make_shared<BlockCosts>(*costs) : std::make_shared<BlockCosts>();
      changed->resize(blocks);
    }
    BlockCost& cost = (*changed)[profile->block.value()];
    const bool is_newer_word = !cost.is_known || cost.rank == report.rank;
    if (is_newer_word || seconds(*profile) > seconds(cost.profile)) {
      cost = {true, report.rank, *profile};
    }
  }
  if (changed) return changed;
  return costs;
}

}  // namespace cox::metrics
