#include "coordinator/policies/memory_round.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/plan_classes.h"
#include "coordinator/core/timings.h"

namespace cox {
namespace {

constexpr double kDownBy = 1.0 / 16;  // of a correction that was too large
constexpr double kSlowBy = 1.0 / 8;
constexpr double kTimedRounds = 12;  // before a rank can be a straggler

bool shape_fits(const MemoryModel& model, std::size_t blocks) {
  const bool kept_fits = model.kept_bytes.empty() || model.kept_bytes.size() == blocks;
  return kept_fits && !model.front.empty() &&
         std::all_of(model.front.begin(), model.front.end(),
                     [blocks](const auto& point) { return point.actions.size() == blocks; });
}

std::optional<MemoryCost> cost_in(const MemoryFront& front, const MemoryModel& model,
                                  const std::vector<MemoryAction>& actions) {
  const auto found = std::find_if(front.begin(), front.end(), [&](const MemoryPoint& point) {
    return point.actions == actions;
  });
  if (found != front.end()) return MemoryCost{found->peak_bytes, found->added_us};
  return cost_of(model, actions);
}

}  // namespace

bool facts_fit(const JobFacts& job) {
  const MemoryFacts& facts = job.memory;
  const auto ranks = static_cast<std::size_t>(job.world_size);
  const std::size_t blocks = job.blocks.size();
  const auto one_a_rank = [ranks](std::size_t n) { return n == 0 || n == ranks; };
  return !facts.models.empty() && one_a_rank(facts.model_of_rank.size()) &&
         one_a_rank(facts.limit_bytes.size()) &&
         std::all_of(facts.model_of_rank.begin(), facts.model_of_rank.end(),
                     [&](std::uint32_t m) { return m < facts.models.size(); }) &&
         std::all_of(facts.models.begin(), facts.models.end(),
                     [blocks](const auto& model) { return shape_fits(model, blocks); });
}

MemoryRound::MemoryRound(const PolicyInput& input, MemoryNotes& notes)
    : input_(input), notes_(notes), round_(input.summary.round.value()) {
  learn_failures();
  find_allowed();
  find_fronts();
  view_ranks();
  learn_times();
  for (std::size_t r = 0; r < views_.size(); ++r) set_budget(r);
  learn_peaks();
  choose_all();
}

// A rank repeats itself until its plan changes, so the rest counts from the last word.
void MemoryRound::learn_failures() {
  std::erase_if(notes_.resting, [this](const RestingAction& rest) {
    const bool is_over = round_ >= rest.until;
    if (is_over) rested_.push_back({RankId(-1), rest.block, rest.action, {}});
    return is_over;
  });
  if (!rested_.empty()) notes_.retrying = 1;
  const std::uint64_t until = round_ + input_.config.memory.retry_rounds;
  for (const RankSignal& report : input_.signals.reports) {
    if (report.fragment.kind != FragmentKind::block_failed) continue;
    const Result<BlockFailure> failure = read_block_failure(report.fragment);
    if (!failure.ok() || failure->block.value() >= input_.job.blocks.size()) continue;
    const std::size_t block = failure->block.value();
    const auto known =
        std::find_if(notes_.resting.begin(), notes_.resting.end(), [&](const RestingAction& rest) {
          return rest.block == block && rest.action == failure->action;
        });
    if (known != notes_.resting.end()) {
      known->until = until;
      continue;
    }
    notes_.resting.push_back({block, failure->action, until});
    failed_.push_back({report.rank, block, failure->action, failure->what.data()});
  }
}

void MemoryRound::find_allowed() {
  for (const std::string& block : input_.job.blocks) {
    allowed_.push_back(static_cast<ActionSet>(allowed_actions(input_.config.memory, block) &
                                              input_.job.capabilities.actions));
  }
  for (const RestingAction& rest : notes_.resting) {
    allowed_[rest.block] = without(allowed_[rest.block], rest.action);
  }
  for (ActionSet& set : allowed_) {
    if (set == 0) set = only(MemoryAction::keep);
  }
}

void MemoryRound::find_fronts() {
  const std::vector<MemoryModel>& models = input_.job.memory.models;
  made_.reserve(models.size());
  for (const MemoryModel& model : models) {
    const bool all_usable =
        std::all_of(model.front.begin(), model.front.end(),
                    [this](const auto& point) { return is_allowed(point.actions, allowed_); });
    if (!all_usable) made_.push_back(usable_front(model, allowed_));
    fronts_.push_back(all_usable ? &model.front : &made_.back());
  }
}

void MemoryRound::view_ranks() {
  const MemoryFacts& facts = input_.job.memory;
  std::map<std::pair<ClassId, std::size_t>, std::optional<MemoryCost>> costs;
  views_.resize(static_cast<std::size_t>(input_.job.world_size));
  for (std::size_t r = 0; r < views_.size(); ++r) {
    RankView& view = views_[r];
    const std::size_t m = facts.model_of_rank.empty() ? 0 : facts.model_of_rank[r];
    view.model = &facts.models[m];
    view.front = fronts_[m];
    view.now_class = class_of(input_.plan, RankId(static_cast<std::int32_t>(r)));
    const auto& actions = input_.plan.classes[view.now_class.value()];
    const auto [cost, is_new] = costs.try_emplace({view.now_class, m});
    if (is_new) cost->second = cost_in(*view.front, *view.model, actions);
    view.now = cost->second;
    view.place.now_allowed = is_allowed(actions, allowed_);
    if (!facts.limit_bytes.empty() && facts.limit_bytes[r] > 0 && notes_.limit[r] == 0) {
      notes_.limit[r] = static_cast<double>(facts.limit_bytes[r]);
    }
  }
}

void MemoryRound::learn_times() {
  const double median = input_.summary.own_seconds.median;
  if (input_.job.world_size < 3 || !(median > 0)) return;
  const Timings timings = timings_of(input_.signals.reports);
  const double off = input_.config.stragglers.slowdown_ratio;
  const double on = 1 + 2 * (off - 1);
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    const auto r = static_cast<std::size_t>(timings.ranks[i].value());
    if (r >= views_.size()) continue;
    double& slowness = notes_.slowness[r];
    const double ratio = std::min(timings.own[i] / median, 100.0);
    slowness = notes_.timed_rounds[r] == 0 ? ratio : slowness + kSlowBy * (ratio - slowness);
    notes_.timed_rounds[r] = std::min(notes_.timed_rounds[r] + 1, 1e6);
    const bool was = notes_.straggles[r] != 0;
    const bool is = notes_.timed_rounds[r] >= kTimedRounds && slowness > (was ? off : on);
    views_[r].turned_straggler = is && !was;
    notes_.straggles[r] = is ? 1 : 0;
  }
}

void MemoryRound::set_budget(std::size_t rank) {
  RankView& view = views_[rank];
  const auto correction = static_cast<std::int64_t>(notes_.correction[rank]);
  RankMemory memory;
  memory.rank = RankId(static_cast<std::int32_t>(rank));
  memory.limit_bytes = static_cast<std::int64_t>(notes_.limit[rank]);
  memory.keep_bytes = view.front->back().peak_bytes + correction;
  if (notes_.ceiling[rank] > 0) {
    const auto ceiling = static_cast<std::int64_t>(notes_.ceiling[rank]);
    if (view.front->back().peak_bytes >= ceiling) memory.keep_bytes = kNoBudget;
  }
  memory.straggles = notes_.straggles[rank] != 0;
  view.budget = budget_of(input_.config.memory, memory);
}

void MemoryRound::learn_peaks() {
  for (const RankSignal& report : input_.signals.reports) {
    const bool applies = !report.has(SignalFlag::watching) && !report.has(SignalFlag::finished);
    const bool is_rank = report.rank.value() < input_.job.world_size;
    if (applies && is_rank && report.rounds > 0) learn_peak(report);
  }
}

void MemoryRound::learn_peak(const RankSignal& report) {
  const auto r = static_cast<std::size_t>(report.rank.value());
  RankView& view = views_[r];
  const double seen = static_cast<double>(report.plan_applied) + 1;
  const bool is_newest = report.plan_applied == input_.plan.id.number;
  const bool is_whole = std::exchange(notes_.plan_seen[r], seen) == seen && is_newest;
  const double peak = static_cast<double>(
      std::min<std::uint64_t>(report.memory_peak_bytes, std::uint64_t{1} << 59));
  if (!is_whole || peak <= 0) return;
  const std::optional<std::int64_t>& headroom = input_.config.memory.inject_headroom;
  if (headroom && notes_.measured[r] == 0) {
    notes_.limit[r] = peak + static_cast<double>(*headroom);
    set_budget(r);
  } else if (notes_.limit[r] == 0 && report.memory_limit_bytes > 0) {
    notes_.limit[r] = static_cast<double>(
        std::min<std::uint64_t>(report.memory_limit_bytes, std::uint64_t{1} << 59));
    set_budget(r);
  }
  notes_.measured[r] = peak;
  if (!view.now) return;
  const double error = peak - static_cast<double>(view.now->peak_bytes);
  double& correction = notes_.correction[r];
  correction = error > correction ? error : correction + kDownBy * (error - correction);
  view.place.breached = peak > static_cast<double>(view.budget.bytes);
  if (!view.place.breached) return;
  const double predicted = static_cast<double>(view.now->peak_bytes);
  const bool is_lower = notes_.ceiling[r] == 0 || predicted < notes_.ceiling[r];
  if (is_lower) notes_.ceiling[r] = predicted;
  notes_.ceiling_until[r] = static_cast<double>(round_) + kCeilingRounds;
}

void MemoryRound::choose_all() {
  for (std::size_t r = 0; r < views_.size(); ++r) {
    RankView& view = views_[r];
    if (notes_.ceiling[r] > 0 && static_cast<double>(round_) >= notes_.ceiling_until[r]) {
      notes_.ceiling[r] = 0;
    }
    RankPlace& place = view.place;
    place.budget_bytes = view.budget.bytes;
    place.correction_bytes = static_cast<std::int64_t>(notes_.correction[r]);
    place.ceiling_bytes = static_cast<std::int64_t>(notes_.ceiling[r]);
    place.now = view.now;
    const bool straggles = notes_.straggles[r] != 0;
    place.eager = straggles || notes_.retrying != 0;
    if (straggles) place.least_worth = kWorthOnStraggler;
    if (notes_.retrying != 0) place.least_worth = 0;
    place.room_rounds = notes_.room_rounds[r];
    view.choice = choose(*view.front, view.model->step_us, place);
    if (input_.summary.reporting > 0) notes_.room_rounds[r] = view.choice.room_rounds;
  }
}

}  // namespace cox
