#include "coordinator/diagnosis/block_times.h"

#include <algorithm>
#include <cmath>

namespace cox::diagnosis {
namespace {

std::int64_t nanoseconds(float seconds) {
  constexpr float kMost = 1e5;
  return std::llround(double{std::clamp(seconds, 0.0F, kMost)} * 1e9);
}

}  // namespace

void BlockProfiles::note(const RankSignal& report) {
  const auto profile = read_block_profile(report.fragment);
  if (!profile.ok() || profile->blocks != names_.size()) return;
  const auto block = static_cast<std::size_t>(profile->block.value());
  if (block >= names_.size()) return;
  const bool is_full = (ranks_.size() + 1) * names_.size() > kMostBlocks;
  if (is_full && !ranks_.contains(report.rank.value())) return;
  OfRank& rank = ranks_[report.rank.value()];
  rank.blocks.resize(names_.size());
  rank.round = static_cast<double>(report.round.value());
  rank.blocks[block] = {nanoseconds(profile->forward_seconds),
                        nanoseconds(profile->backward_seconds)};
}

BlockTimes BlockProfiles::times(std::int32_t rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return {};
  BlockTimes out{found->second.round, {}};
  for (std::size_t b = 0; b < names_.size(); ++b) {
    const Profile& profile = found->second.blocks[b];
    if (profile.forward_ns < 0) return {};
    out.blocks.push_back({names_[b], profile.forward_ns, profile.backward_ns});
  }
  return out;
}

}  // namespace cox::diagnosis
