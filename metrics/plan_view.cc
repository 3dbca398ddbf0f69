#include "metrics/plan_view.h"

#include <algorithm>

namespace cox::metrics {
namespace {

MemoryAction action_at(const Plan& plan, std::size_t profile_index, std::size_t block) {
  if (profile_index >= plan.profiles.size()) return MemoryAction::keep;
  const auto& actions = plan.profiles[profile_index];
  return block < actions.size() ? actions[block] : MemoryAction::keep;
}

}  // namespace

RankCounts rank_counts(const Snapshot& snapshot) {
  const StepSummary& s = snapshot.summary;
  const std::int32_t world = snapshot.job->world_size;
  RankCounts counts;
  counts.missing = std::clamp(world - s.reporting, 0, world);
  const std::int32_t here = world - counts.missing;
  counts.finished = std::clamp(s.finished, 0, here);
  counts.watching = std::clamp(s.watching, 0, here - counts.finished);
  counts.training = here - counts.finished - counts.watching;
  return counts;
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

KnobMix knob_mix(const Plan& plan, std::int32_t world_size) {
  KnobMix mix;
  for (const Precision precision : plan.precision)
    mix.precision_blocks[static_cast<std::size_t>(precision)] += 1;
  const auto sizes = profile_sizes(plan, world_size);
  const double ranks = std::max(world_size, 1);
  for (std::size_t c = 0; c < plan.profiles.size(); ++c) {
    for (const MemoryAction action : plan.profiles[c])
      mix.action_blocks[static_cast<std::size_t>(action)] += sizes[c] / ranks;
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

std::string common_prefix(const JobFacts& job) {
  if (job.blocks.size() < 2) return {};
  std::string prefix = job.blocks.front();
  for (const std::string& name : job.blocks) {
    const auto ends = std::mismatch(prefix.begin(), prefix.end(), name.begin(), name.end());
    prefix.erase(ends.first, prefix.end());
  }
  const auto dot = prefix.rfind('.');
  return dot == std::string::npos ? std::string() : prefix.substr(0, dot + 1);
}

std::string block_name(const JobFacts& job, std::size_t block) {
  return block < job.blocks.size() ? job.blocks[block] : "block " + std::to_string(block);
}

}  // namespace cox::metrics
