#include "metrics/plan_counts.h"

#include <algorithm>

namespace cox::metrics {
namespace {

MemoryAction action_at(const Plan& plan, std::size_t profile_index, std::size_t block) {
  if (profile_index >= plan.profiles.size()) return MemoryAction::keep;
  const auto& actions = plan.profiles[profile_index];
  return block < actions.size() ? actions[block] : MemoryAction::keep;
}

}  // namespace

KnobMix knob_mix(const Plan& plan, std::int32_t world_size) {
  KnobMix mix;
  for (const Precision precision : plan.precision)
    mix.precision_blocks[static_cast<std::size_t>(precision)] += 1;
  const auto sizes = profile_sizes(plan, world_size);
  const double ranks = std::max(world_size, 1);
  for (std::size_t c = 0; c < plan.profiles.size(); ++c) {
    for (const MemoryAction action : plan.profiles[c])
      mix.action_blocks[static_cast<std::size_t>(kind_of(action))] += sizes[c] / ranks;
  }
  return mix;
}

std::vector<BlockRun> block_runs(const Plan& plan, std::size_t profile_index) {
  std::vector<BlockRun> runs;
  for (std::size_t block = 0; block < plan.precision.size(); ++block) {
    const Precision precision = plan.precision[block];
    const MemoryAction action = action_at(plan, profile_index, block);
    if (!runs.empty() && runs.back().precision == precision && runs.back().action == action)
      runs.back().last = block;
    else
      runs.push_back({block, block, precision, action});
  }
  return runs;
}

std::vector<std::int32_t> profile_sizes(const Plan& plan, std::int32_t world_size) {
  std::vector<std::int32_t> sizes(std::max<std::size_t>(plan.profiles.size(), 1), 0);
  if (plan.rank_profile.empty()) {
    sizes[0] = world_size;
    return sizes;
  }
  for (const ProfileId id : plan.rank_profile) {
    if (id.value() < sizes.size()) ++sizes[id.value()];
  }
  return sizes;
}

std::vector<ActionRanks> action_ranks(const Plan& plan, std::int32_t world_size) {
  std::vector<ActionRanks> ranks(plan.precision.size(), ActionRanks{});
  const std::vector<std::int32_t> sizes = profile_sizes(plan, world_size);
  for (std::size_t c = 0; c < plan.profiles.size(); ++c) {
    for (std::size_t b = 0; b < std::min(ranks.size(), plan.profiles[c].size()); ++b) {
      ranks[b][static_cast<std::size_t>(plan.profiles[c][b])] += sizes[c];
    }
  }
  return ranks;
}

}  // namespace cox::metrics
