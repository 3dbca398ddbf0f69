#include "metrics/memory_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

// All ranks of one class and one model are alike.
struct Kind {
  RankMemoryView rank;
  std::int64_t kept_block_bytes = 0;
};

bool keeps_all(const std::vector<MemoryAction>& actions) {
  return std::all_of(actions.begin(), actions.end(),
                     [](MemoryAction action) { return action == MemoryAction::keep; });
}

std::int64_t block_bytes(const MemoryModel& model, const std::vector<MemoryAction>* actions) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < model.kept_bytes.size(); ++b) {
    const bool is_kept =
        actions == nullptr || (b < actions->size() && (*actions)[b] == MemoryAction::keep);
    if (is_kept) bytes += model.kept_bytes[b];
  }
  return bytes;
}

Kind kind_of(const MemoryModel& model, const std::vector<MemoryAction>& actions) {
  Kind kind;
  // Where blocks are forced, no plan that keeps all of them was measured.
  const bool knows_keep_all = !model.front.empty() && keeps_all(model.front.back().actions);
  if (knows_keep_all) kind.rank.keep_all_peak_bytes = model.front.back().peak_bytes;
  if (const std::optional<MemoryCost> cost = cost_of(model, actions)) {
    kind.rank.predicted_peak_bytes = cost->peak_bytes;
    if (model.step_us > 0) {
      kind.rank.added_ratio =
          static_cast<double>(cost->added_us) / static_cast<double>(model.step_us);
    }
  }
  kind.kept_block_bytes = block_bytes(model, &actions);
  return kind;
}

void add(MemoryView& view, const RankMemoryView& rank) {
  view.predicted_peak_bytes = std::max(view.predicted_peak_bytes, rank.predicted_peak_bytes);
  view.keep_all_peak_bytes = std::max(view.keep_all_peak_bytes, rank.keep_all_peak_bytes);
  if (rank.predicted_peak_bytes > 0 && rank.keep_all_peak_bytes > 0) {
    view.saved_bytes =
        std::max(view.saved_bytes, rank.keep_all_peak_bytes - rank.predicted_peak_bytes);
  }
  if (rank.budget_bytes > 0 && (view.budget_bytes == 0 || rank.budget_bytes < view.budget_bytes)) {
    view.budget_bytes = rank.budget_bytes;
  }
  view.added_ratio = std::fmax(view.added_ratio, rank.added_ratio);  // of NaN and a number: that
}

}  // namespace

std::shared_ptr<const MemoryView> memory_view(const JobFacts& job, const Plan& plan,
                                              std::span<const std::int64_t> budget_bytes) {
  const MemoryFacts& facts = job.memory;
  if (facts.models.empty() || plan.profiles.empty()) return nullptr;
  auto view = std::make_shared<MemoryView>();
  std::map<std::tuple<std::size_t, std::size_t>, Kind> kinds;
  view->ranks.resize(static_cast<std::size_t>(std::max(job.world_size, 0)));
  for (std::size_t r = 0; r < view->ranks.size(); ++r) {
    const std::size_t c = r < plan.rank_profile.size() ? plan.rank_profile[r].value() : 0;
    const std::size_t m = r < facts.model_of_rank.size() ? facts.model_of_rank[r] : 0;
    if (c >= plan.profiles.size() || m >= facts.models.size()) continue;
    const auto [kind, is_new] = kinds.try_emplace({c, m});
    if (is_new) kind->second = kind_of(facts.models[m], plan.profiles[c]);
    view->ranks[r] = kind->second.rank;
    if (r < budget_bytes.size()) view->ranks[r].budget_bytes = budget_bytes[r];
    add(*view, view->ranks[r]);
  }
  for (const auto& [key, kind] : kinds) {
    const MemoryModel& model = facts.models[std::get<1>(key)];
    view->resident_bytes = std::max(view->resident_bytes, model.base_bytes);
    view->keep_all_block_bytes = std::max(view->keep_all_block_bytes, block_bytes(model, nullptr));
    view->plan_kept_block_bytes = std::max(view->plan_kept_block_bytes, kind.kept_block_bytes);
  }
  return view;
}

bool has_budgets(const MemoryView& view, std::span<const std::int64_t> budget_bytes) {
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    const std::int64_t budget = r < budget_bytes.size() ? budget_bytes[r] : 0;
    if (view.ranks[r].budget_bytes != budget) return false;
  }
  return true;
}

MemoryHeadroom memory_headroom(const MemoryView& view, const StepSignals& signals) {
  MemoryHeadroom headroom;
  for (const RankSignal& report : signals.reports) {
    const auto r = static_cast<std::size_t>(report.rank.value());
    if (r >= view.ranks.size() || report.memory_peak_bytes == 0) continue;
    const std::int64_t budget = view.ranks[r].budget_bytes;
    if (budget <= 0) continue;
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const auto peak = static_cast<std::int64_t>(std::min(report.memory_peak_bytes, kMost));
    const std::int64_t left = budget - peak;
    if (left < 0) ++headroom.over_budget;
    if (headroom.tightest.value() >= 0 && left >= headroom.least_bytes) continue;
    headroom.tightest = report.rank;
    headroom.least_bytes = left;
  }
  return headroom;
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
