#include "coordinator/policies/memory_words.h"

#include <algorithm>
#include <array>

#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::array<std::string_view, 4> kDone = {"kept", "recomputed", "offloaded", "tiled"};

std::string corrected_by(std::int64_t correction) {
  if (correction == 0) return {};
  return sentence(" (corrected by %s%s)", correction > 0 ? "+" : "-",
                  mib(correction > 0 ? correction : -correction).c_str());
}

// Techniques that the user took out of the planner's hands.
std::string withheld_text(const MemoryConfig& config) {
  std::string text;
  const auto add = [&text](bool is_off, std::string_view key) {
    if (is_off) text += (text.empty() ? "" : ", ") + std::string(key);
  };
  add(!config.recompute, "memory.recompute is off");
  add(!config.offload, "memory.offload is off");
  add(!config.tile, "memory.tile is off");
  add(!config.forbid.empty(), "memory.forbid is set");
  add(!config.force.empty(), "memory.force is set");
  add(config.most_recomputed < 1, "memory.most_recomputed is below 1");
  return text.empty() ? text : "; lift what limits it (" + text + ")";
}

}  // namespace

std::string mib(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / 1048576.0;
  const int digits = value >= 100 ? 0 : value >= 1 ? 1 : 3;
  return sentence("%.*f MiB", digits, value);
}

std::string added_time(std::int64_t added_us, std::int64_t step_us) {
  const auto added = static_cast<double>(added_us);
  if (step_us <= 0) return sentence("+%.1f ms", added / 1000);
  return sentence("+%.1f %% time", 100 * added / static_cast<double>(step_us));
}

std::string mix_text(std::span<const MemoryAction> actions) {
  std::array<std::size_t, 4> counts{};
  for (const MemoryAction action : actions) ++counts[static_cast<std::size_t>(action)];
  if (counts[0] == actions.size()) return sentence("all %zu blocks kept", actions.size());
  std::string text;
  for (std::size_t a = 1; a < counts.size(); ++a) {
    if (counts[a] == 0) continue;
    text += text.empty() ? sentence("%zu of %zu blocks ", counts[a], actions.size())
                         : sentence(", %zu ", counts[a]);
    text += kDone[a];
  }
  return text;
}

std::string group_text(const RankGroup& group, std::size_t world) {
  std::string text = ranks_text(group.ranks, world) + ": " + mix_text(group.actions) +
                     ", predicted peak " + mib(group.peak_bytes);
  text += group.budget_bytes >= kNoBudget ? ", no budget" : " of " + mib(group.budget_bytes);
  const bool keeps_all =
      std::all_of(group.actions.begin(), group.actions.end(),
                  [](MemoryAction action) { return action == MemoryAction::keep; });
  if (!keeps_all) text += " (fastest plan: " + mib(group.keep_bytes) + ")";
  return text + ", " + added_time(group.cost.added_us, group.step_us);
}

std::string over_budget_text(std::size_t rank, const RankView& view, std::int64_t measured_bytes) {
  const std::string budget = mib(view.budget.bytes);
  if (view.place.breached) {
    const std::string predicted = view.now ? mib(view.now->peak_bytes) : std::string("unknown");
    return sentence("rank %zu peaked at %s, %s above its budget of %s (predicted: %s)", rank,
                    mib(measured_bytes).c_str(), mib(measured_bytes - view.budget.bytes).c_str(),
                    budget.c_str(), predicted.c_str());
  }
  if (!view.now) {
    return sentence("what rank %zu's plan needs is not known, its budget is %s", rank,
                    budget.c_str());
  }
  const std::int64_t peak = view.now->peak_bytes + view.place.correction_bytes;
  if (peak <= view.budget.bytes) {
    return sentence("a plan of %s or more was measured above rank %zu's budget of %s",
                    mib(view.place.ceiling_bytes).c_str(), rank, budget.c_str());
  }
  return sentence("rank %zu would peak at %s%s, %s above its budget of %s", rank, mib(peak).c_str(),
                  corrected_by(view.place.correction_bytes).c_str(),
                  mib(peak - view.budget.bytes).c_str(), budget.c_str());
}

std::string room_text(std::size_t rank, const RankView& view, bool straggles, double slowness) {
  if (straggles) {
    return sentence(
        "rank %zu is %.0f %% slower than the others, so it gets the lightest plan that "
        "fits its budget of %s, which saves %.1f %% of its step",
        rank, 100 * (slowness - 1), mib(view.budget.bytes).c_str(), 100 * view.choice.worth);
  }
  return sentence("rank %zu has room in its budget of %s: a lighter plan saves %.1f %% of the step",
                  rank, mib(view.budget.bytes).c_str(), 100 * view.choice.worth);
}

std::string infeasible_text(std::size_t rank, const RankView& view, const MemoryConfig& config) {
  const std::int64_t least = view.front->front().peak_bytes + view.place.correction_bytes;
  return sentence("the budget of rank %zu, %s, cannot be met: the smallest peak is %s%s, %s more; ",
                  rank, mib(view.budget.bytes).c_str(), mib(least).c_str(),
                  corrected_by(view.place.correction_bytes).c_str(),
                  mib(std::max<std::int64_t>(least - view.budget.bytes, 0)).c_str()) +
         sentence("give it at least %s or make the micro-batch smaller", mib(least).c_str()) +
         withheld_text(config);
}

}  // namespace cox
