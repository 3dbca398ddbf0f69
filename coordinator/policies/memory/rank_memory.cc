#include "coordinator/policies/memory/rank_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "coordinator/core/plan.h"
#include "coordinator/core/summary.h"
#include "coordinator/estimates/estimates.h"
#include "coordinator/planner/share_assignment.h"

namespace cox {
namespace {

constexpr double kRoom = 0.98;  // of the budget, for a lighter plan
constexpr double kWorthOnStraggler = 0.002;
constexpr std::uint32_t kRoomRounds = 16;
constexpr std::uint64_t kCeilingRounds = 1000;
constexpr double kUntried = 0.02;     // of a budget, left free at a share that was not measured
constexpr std::int64_t kDownBy = 16;  // divides a correction that was too large, for its decrease
constexpr std::uint32_t kCorrectionRounds = 64;  // before a decrease: some steps need more bytes

class Digest {
 public:
  void add(std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211ull; }
  void add(const MemoryBudget& budget) {
    add(static_cast<std::uint64_t>(budget.kind));
    add(static_cast<std::uint64_t>(budget.bytes));
    add(std::bit_cast<std::uint64_t>(budget.fraction));
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037ull;
};

std::uint64_t digest_of(const JobFacts& job, const MemoryConfig& config) {
  Digest digest;
  for (const MemoryModel& model : job.memory.models) {
    digest.add(model.front.size());
    digest.add(static_cast<std::uint64_t>(model.base_bytes));
    digest.add(model.samples);
    for (const MemoryPoint& point : model.front) {
      digest.add(static_cast<std::uint64_t>(point.peak_bytes));
      digest.add(static_cast<std::uint64_t>(point.added_us));
    }
  }
  for (const std::uint32_t model : job.memory.model_of_rank) digest.add(model);
  digest.add(config.budget);
  for (const auto& [rank, budget] : config.budget_of_rank) {
    digest.add(static_cast<std::uint64_t>(rank));
    digest.add(budget);
  }
  return digest.value();
}

bool is_sane_rank(const RankMemoryState& rank) {
  const auto is_bytes = [](std::int64_t value) { return value >= 0 && value <= kNoBudget; };
  return rank.correction_bytes >= -kNoBudget && rank.correction_bytes <= kNoBudget &&
         is_bytes(rank.measured_bytes) && is_bytes(rank.limit_bytes) &&
         is_bytes(rank.ceiling_bytes) && rank.samples <= kMaxStepSamples;
}

bool shape_fits(const MemoryModel& model, std::size_t blocks) {
  const bool kept_fits = model.kept_bytes.empty() || model.kept_bytes.size() == blocks;
  return kept_fits && !model.front.empty() &&
         std::ranges::all_of(
             model.front, [blocks](const auto& point) { return point.actions.size() == blocks; });
}

// Returns the measured peak `bytes`, scaled to the rank's share.
std::int64_t peak_at_share(const RankView& view, std::int64_t bytes) {
  return peak_with(*view.model, bytes, view.samples);
}

// Returns `keep` for a block without other actions.
std::vector<ActionSet> allowed_of_blocks(const PolicyInput& input,
                                         std::span<const RestingAction> resting) {
  std::vector<ActionSet> allowed;
  for (const std::string& block : input.job.blocks) {
    allowed.push_back(static_cast<ActionSet>(allowed_actions(input.config.memory, block) &
                                             input.job.capabilities.actions));
  }
  for (const RestingAction& rest : resting) {
    allowed[rest.block] = without_kind(allowed[rest.block], rest.action);
  }
  for (ActionSet& set : allowed) {
    if (set == 0) set = only(MemoryAction::keep);
  }
  return allowed;
}

// --- what a round teaches ---------------------------------------------------------------------

void end_rests(const PolicyInput& input, MemoryRound& round) {
  std::erase_if(round.state.resting, [&](const RestingAction& rest) {
    const bool is_over = input.summary.round >= rest.until;
    if (is_over) round.rested.push_back({RankId(-1), rest.block, rest.action, {}});
    return is_over;
  });
  if (!round.rested.empty()) round.state.retries = true;
}

// A rank reports a failure until its plan changes, so the rest counts from the last report.
void learn_failures(const PolicyInput& input, MemoryRound& round) {
  if (input.summary.fragments_of(FragmentKind::block_failed) == 0) return;
  const RoundId until(input.summary.round.value() + input.config.memory.retry_rounds);
  for (const RankSignal& report : input.signals.reports) {
    if (report.fragment.kind != FragmentKind::block_failed) continue;
    const Result<BlockFailure> failure = read_block_failure(report.fragment);
    if (!failure.ok() || failure->block.value() >= input.job.blocks.size()) continue;
    const std::size_t block = failure->block.value();
    auto& resting = round.state.resting;
    const auto known = std::ranges::find_if(resting, [&](const RestingAction& rest) {
      return rest.block == block && rest.action == kind_of(failure->action);
    });
    if (known != resting.end()) {
      known->until = until;
      continue;
    }
    resting.push_back({block, kind_of(failure->action), until});
    round.failed.push_back({report.rank, block, failure->action, failure->what.data()});
  }
}

std::optional<MemoryCost> cost_in(const MemoryFront& front, const MemoryModel& model,
                                  const std::vector<MemoryAction>& actions) {
  const auto found = std::ranges::find_if(
      front, [&](const MemoryPoint& point) { return point.actions == actions; });
  if (found != front.end()) return MemoryCost{found->peak_bytes, found->added_us};
  return cost_of(model, actions);
}

// Returns one front per model: the model's own if all of its points may be used.
std::vector<const MemoryFront*> usable_fronts(const std::vector<MemoryModel>& models,
                                              MemoryRound& round) {
  std::vector<const MemoryFront*> fronts;
  round.made.reserve(models.size());
  for (const MemoryModel& model : models) {
    const bool all_usable = std::ranges::all_of(model.front, [&round](const auto& point) {
      return is_allowed(point.actions, round.allowed);
    });
    if (!all_usable) round.made.push_back(usable_front(model, round.allowed));
    fronts.push_back(all_usable ? &model.front : &round.made.back());
  }
  return fronts;
}

// A profile of the plan under one model. Made once a round, because all blocks are compared.
struct KnownProfile {
  std::optional<MemoryCost> cost;  // as measured
  bool is_allowed = true;
};

KnownProfile known_profile(const PolicyInput& input, const MemoryRound& round,
                           const RankView& view) {
  const std::vector<MemoryAction>& actions = input.plan.profiles[view.profile.value()];
  return {cost_in(*view.front, *view.model, actions), is_allowed(actions, round.allowed)};
}

RankBudget budget_now(const PolicyInput& input, const RankMemoryState& known, RankId rank,
                      const RankView& view) {
  return budget_of_rank(input.config.memory, known, rank, view.keep_bytes);
}

// Makes the views of ranks. Most of a view follows from the rank's model, profile and samples, so
// views of recent ranks with equal values are reused.
class Views {
 public:
  // References must outlive the views. REQUIRES: `round` has allowed actions and samples.
  Views(const PolicyInput& input, MemoryRound& round)
      : input_(input), round_(round), fronts_(usable_fronts(input.job.memory.models, round)) {}

  RankView of(std::size_t rank) {
    const MemoryFacts& facts = input_.job.memory;
    const RankMemoryState& known = round_.state.ranks[rank];
    const std::size_t m = facts.model_of_rank.empty() ? 0 : facts.model_of_rank[rank];
    const MemoryModel& model = facts.models[m];
    const bool depends = model.samples > 0 && !round_.samples.empty();
    const std::uint64_t samples =
        depends ? std::max(round_.samples[rank], known.samples) : model.samples;
    const ProfileId profile = profile_of(input_.plan, rank_id(rank));
    RankView& alike = recent_[samples % recent_.size()];
    const bool is_alike =
        alike.model == &model && alike.profile == profile && alike.samples == samples;
    if (!is_alike) alike = new_view(m, profile, samples);
    RankView view = alike;
    view.budget = budget_now(input_, known, rank_id(rank), view);
    return view;
  }

 private:
  RankView new_view(std::size_t m, ProfileId profile, std::uint64_t samples) {
    RankView view;
    view.model = &input_.job.memory.models[m];
    view.front = fronts_[m];
    view.samples = samples;
    view.profile = profile;
    const auto [known, is_new] = profiles_.try_emplace({profile, m});
    if (is_new) known->second = known_profile(input_, round_, view);
    view.now = known->second.cost;
    view.now_allowed = known->second.is_allowed;
    if (view.now) view.now->peak_bytes = peak_at_share(view, view.now->peak_bytes);
    view.keep_bytes = peak_at_share(view, view.front->back().peak_bytes);
    view.least_bytes = peak_at_share(view, view.front->front().peak_bytes);
    return view;
  }

  const PolicyInput& input_;
  MemoryRound& round_;
  std::vector<const MemoryFront*> fronts_;
  std::map<std::pair<ProfileId, std::size_t>, KnownProfile> profiles_;  // and model
  std::array<RankView, 64> recent_{};                                   // by samples
};

// `report`: the rank's report in this round, or null.
void learn_rank(const PolicyInput& input, std::size_t rank, const RankSignal* report,
                RankMemoryState& known) {
  const std::vector<std::int64_t>& limits = input.job.memory.limit_bytes;
  const bool has_limit = !limits.empty() && limits[rank] > 0;
  if (has_limit && known.limit_bytes == 0) known.limit_bytes = limits[rank];
  if (report == nullptr || report->rounds == 0) return;
  known.samples = (std::uint64_t{report->samples} + report->rounds - 1) / report->rounds;
}

std::int64_t bounded(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, std::uint64_t{1} << 59));
}

// Returns whether this report gave the limit of the rank.
bool learn_limit(const MemoryConfig& config, const RankSignal& report, std::int64_t peak,
                 RankMemoryState& known) {
  if (config.inject_headroom && known.measured_bytes == 0) {
    known.limit_bytes = peak + *config.inject_headroom;
    return true;
  }
  if (known.limit_bytes != 0 || report.memory_limit_bytes == 0) return false;
  known.limit_bytes = bounded(report.memory_limit_bytes);
  return true;
}

// Counts the largest error of the last rounds. Steps that sample numbers or save need more bytes
// than other steps, and a plan must leave room for both.
void correct(RankMemoryState& known, std::int64_t error) {
  std::int64_t& correction = known.correction_bytes;
  if (error >= correction) {
    correction = error;
    known.correction_rounds = kCorrectionRounds;
  } else if (known.correction_rounds > 0) {
    --known.correction_rounds;
  } else {
    correction += (error - correction) / kDownBy;
  }
}

// Records that a plan with these predicted bytes did not fit.
void learn_breach(RoundId now, std::int64_t predicted, RankMemoryState& known) {
  const bool is_lower = known.ceiling_bytes == 0 || predicted < known.ceiling_bytes;
  if (is_lower) known.ceiling_bytes = predicted;
  known.ceiling_until = RoundId(now.value() + kCeilingRounds);
}

void learn_peak(const PolicyInput& input, const RankSignal& report, RankMemoryState& known,
                RankView& view) {
  const bool is_newest = report.plan_applied == input.plan.id.number;
  const bool is_whole =
      std::exchange(known.plan_seen, report.plan_applied) == report.plan_applied && is_newest;
  view.ran_out = is_newest && view.now && report.has(SignalFlag::out_of_memory);
  if (view.ran_out) {  // the reported peak belongs to other actions
    view.breached = true;
    return learn_breach(input.summary.round, view.now->peak_bytes, known);
  }
  const std::int64_t peak = bounded(report.memory_peak_bytes);
  if (!is_whole || peak <= 0) return;
  if (learn_limit(input.config.memory, report, peak, known)) {
    view.budget = budget_now(input, known, report.rank, view);
  }
  known.measured_bytes = peak;
  if (!view.now) return;
  const std::int64_t predicted = view.now->peak_bytes;
  const std::int64_t error = peak - predicted;
  correct(known, error);
  view.breached = peak > view.budget.bytes;
  if (view.breached) learn_breach(input.summary.round, predicted, known);
}

// --- the choice of a point --------------------------------------------------------------------

// The eagerness of a rank to move to a lighter plan.
struct Eagerness {
  bool stays = false;             // never moves
  bool at_once = false;           // uses the whole budget and does not wait
  double least_worth = kWorthIt;  // of the step
  std::uint32_t room_rounds = 0;  // in a row, before this one
};

// Returns the fastest point with a predicted peak of at most `bytes`.
std::optional<std::size_t> fastest_within(const RankView& view, std::int64_t bytes) {
  const auto above = std::partition_point(
      view.front->begin(), view.front->end(),
      [&](const MemoryPoint& point) { return peak_at_share(view, point.peak_bytes) <= bytes; });
  if (above == view.front->begin()) return std::nullopt;
  return static_cast<std::size_t>(above - view.front->begin()) - 1;
}

double worth_of(std::int64_t saved_us, std::int64_t added_us, std::int64_t step_us) {
  if (step_us <= 0) return 1;
  return static_cast<double>(saved_us) / static_cast<double>(step_us + added_us);
}

// Returns the highest predicted peak that a plan may have.
std::int64_t predictable_bytes(const RankView& view, std::int64_t budget_bytes) {
  const std::int64_t most = budget_bytes - view.correction_bytes;
  return view.ceiling_bytes > 0 ? std::min(most, view.ceiling_bytes - 1) : most;
}

Choice look_for_room(const RankView& view, const Eagerness& eagerness) {
  Choice choice;
  const MemoryFront& front = *view.front;
  if (eagerness.stays) return choice;
  // Peaks at other shares than the measured one are less exact.
  const bool is_exact = view.model->samples == 0 || view.samples == view.model->samples;
  const double filled = !eagerness.at_once ? kRoom : is_exact ? 1 : 1 - kUntried;
  const std::int64_t most = predictable_bytes(view, part(filled, view.budget.bytes));
  const auto lighter = fastest_within(view, most);
  if (!lighter || front[*lighter].added_us >= view.now->added_us) return choice;
  choice.worth = worth_of(view.now->added_us - front[*lighter].added_us, view.now->added_us,
                          view.model->step_us);
  if (choice.worth < eagerness.least_worth) return choice;
  choice.room_rounds = eagerness.room_rounds + 1;
  if (choice.room_rounds < kRoomRounds && !eagerness.at_once) return choice;
  choice.move = Move::lighter;
  choice.point = *lighter;
  choice.room_rounds = 0;
  return choice;
}

Choice choose(const RankView& view, const Eagerness& eagerness) {
  const std::int64_t fits = predictable_bytes(view, view.budget.bytes);
  if (view.now_allowed && view.now && view.now->peak_bytes <= fits) {
    return look_for_room(view, eagerness);
  }
  Choice choice;
  const auto fastest = fastest_within(view, fits);
  choice.feasible = fastest.has_value();
  choice.point = fastest.value_or(0);
  const bool has_least =
      view.now_allowed && view.now && !choice.feasible && view.now->peak_bytes <= view.least_bytes;
  const Move heavier = view.breached ? Move::breach : Move::over_budget;
  if (!has_least) choice.move = view.now_allowed ? heavier : Move::rules;
  return choice;
}

// Leaves room for the error of a peak at more samples than were measured, if a point has the room.
Choice choose_for_share(RankView view, const Eagerness& eagerness, std::uint64_t measured_samples) {
  const Choice choice = choose(view, eagerness);
  if (view.budget.bytes >= kNoBudget || view.samples <= measured_samples) return choice;
  view.correction_bytes += part(kUntried, view.budget.bytes);
  const Choice roomy = choose(view, eagerness);
  return roomy.feasible ? roomy : choice;
}

// A ceiling is forgotten after kCeilingRounds.
void set_correction(RoundId now, RankMemoryState& known, RankView& view) {
  if (now >= known.ceiling_until) known.ceiling_bytes = 0;
  view.correction_bytes = known.correction_bytes;
  view.ceiling_bytes = known.ceiling_bytes;
}

Eagerness eagerness_of(const MemoryState& state, const RankMemoryState& known) {
  Eagerness eagerness;
  eagerness.at_once = known.straggles || state.retries;
  if (known.straggles) eagerness.least_worth = kWorthOnStraggler;
  if (state.retries) eagerness.least_worth = 0;
  eagerness.room_rounds = known.room_rounds;
  return eagerness;
}

Choice priced(const RankView& view, Choice choice) {
  if (choice.move == Move::stay) return choice;
  const MemoryPoint& point = (*view.front)[choice.point];
  choice.cost = {peak_at_share(view, point.peak_bytes), point.added_us};
  return choice;
}

// Caches largest_share(): the rank before often has the same one.
class LargestShare {
 public:
  std::uint64_t of(const MemoryModel& model, std::int64_t peak_bytes, std::int64_t bytes) {
    const bool is_same = model_ == &model && peak_bytes_ == peak_bytes && bytes_ == bytes;
    if (!is_same) share_ = largest_share(model, peak_bytes, bytes);
    model_ = &model;
    peak_bytes_ = peak_bytes;
    bytes_ = bytes;
    return share_;
  }

 private:
  const MemoryModel* model_ = nullptr;
  std::int64_t peak_bytes_ = 0;
  std::int64_t bytes_ = 0;
  std::uint64_t share_ = 0;
};

// Returns the most samples of a rank within a part of its budget. A mode takes less of the limit
// only if keeping all blocks does not fit, so two budgets are tried.
std::uint64_t share_within(const PolicyInput& input, const RankMemoryState& known, RankId rank,
                           const RankView& view, double budget_part, LargestShare& largest) {
  const auto predictable = [&](std::int64_t keep_bytes) {
    const RankBudget budget = budget_of_rank(input.config.memory, known, rank, keep_bytes);
    const std::int64_t bytes =
        budget.bytes == kNoBudget ? kNoBudget : part(budget_part, budget.bytes);
    return predictable_bytes(view, bytes);
  };
  const std::int64_t planned = predictable(kNoBudget);
  const std::int64_t kept = predictable(0);
  const std::uint64_t share = largest.of(*view.model, view.front->front().peak_bytes, planned);
  if (kept <= planned) return share;  // the point of least bytes has the largest share
  return std::max(share, largest_share(*view.model, view.front->back().peak_bytes, kept));
}

// Computes an entry of MemoryRound::most_samples. `present`: the rank's samples now.
std::uint64_t most_samples_of(const PolicyInput& input, const RankMemoryState& known, RankId rank,
                              const RankView& view, std::uint64_t present, LargestShare& largest) {
  std::uint64_t share = share_within(input, known, rank, view, 1, largest);
  // A missed budget is met with some distance, so that noise moves no samples.
  if (share < present) {
    share = std::min(share_within(input, known, rank, view, kRoom, largest), present);
  }
  return share > 0 ? share : present;
}

// Returns the rank's entry, or null, and keeps the entries of later ranks in `left`. Reads each
// entry once and in order, for the prefetcher. REQUIRES: ranks ascend over all calls.
template <class OfRank>
const OfRank* take_of(std::span<const OfRank>& left, RankId rank) {
  while (!left.empty() && left.front().rank < rank) left = left.subspan(1);
  if (left.empty() || left.front().rank != rank) return nullptr;
  return std::exchange(left, left.subspan(1)).data();
}

void keep_view(const RankView& view, MemoryRound& round) {
  const std::size_t rank = round.ranks.size();
  const auto note = [rank](bool is_so, std::optional<std::size_t>& first) {
    if (is_so && !first) first = rank;
  };
  note(view.choice.move != Move::stay, round.moves);
  note(!view.choice.feasible, round.infeasible);
  note(view.budget.needs_limit, round.needs_limit);
  round.ranks.push_back(view);
}

void choose_point(const PolicyInput& input, const MemoryState& state, RankMemoryState& known,
                  RankView& view) {
  set_correction(input.summary.round, known, view);
  view.choice = priced(view, choose(view, eagerness_of(state, known)));
  if (input.summary.reporting > 0) known.room_rounds = view.choice.room_rounds;
  if (view.choice.move == Move::stay) return;
  view.ends_slow_plan = known.has_slow_plan && !known.straggles && view.now &&
                        view.now->peak_bytes > view.budget.bytes;
  known.has_slow_plan = view.choice.move == Move::lighter && known.straggles;
}

// Learns from and chooses for one rank at a time, because the data of thousands of ranks is in no
// cache.
void look_at_ranks(const PolicyInput& input, MemoryRound& round) {
  Views views(input, round);
  LargestShare largest;
  std::span<const RankSignal> reports = input.signals.reports;
  std::span<const SlowRank> slow = input.estimates.slowness.slow;
  round.ranks.reserve(round.state.ranks.size());
  round.most_samples.reserve(round.samples.size());
  bool is_limited = false;
  for (std::size_t r = 0; r < round.state.ranks.size(); ++r) {
    RankMemoryState& known = round.state.ranks[r];
    const RankSignal* const report = take_of(reports, rank_id(r));
    known.straggles = take_of(slow, rank_id(r)) != nullptr;
    learn_rank(input, r, report, known);
    RankView view = views.of(r);
    if (report != nullptr && report->applies_plans() && report->rounds > 0) {
      learn_peak(input, *report, known, view);
    }
    choose_point(input, round.state, known, view);
    keep_view(view, round);
    if (r >= round.samples.size()) continue;
    round.most_samples.push_back(
        most_samples_of(input, known, rank_id(r), view, round.samples[r], largest));
    is_limited = is_limited || round.most_samples.back() < kMaxStepSamples;
  }
  if (!is_limited) round.most_samples.clear();
}

}  // namespace

RankBudget budget_of_rank(const MemoryConfig& config, const RankMemoryState& rank, RankId id,
                          std::int64_t keep_bytes) {
  RankMemory memory;
  memory.rank = id;
  memory.limit_bytes = rank.limit_bytes;
  memory.keep_bytes = keep_bytes + rank.correction_bytes;
  const bool is_known_to_break = rank.ceiling_bytes > 0 && keep_bytes >= rank.ceiling_bytes;
  if (is_known_to_break) memory.keep_bytes = kNoBudget;
  memory.straggles = rank.straggles;
  return budget_of(config, memory);
}

bool MemoryState::is_sane() const {
  return std::ranges::all_of(ranks, is_sane_rank);
}

MemoryState take_memory_state(PolicyState kept, const JobFacts& job, const MemoryConfig& config) {
  auto state = kept.take_or_fresh<MemoryState>();
  const std::size_t ranks = job.ranks();
  const std::uint64_t digest = digest_of(job, config);
  const bool is_known = state.digest == digest && state.ranks.size() == ranks &&
                        std::ranges::all_of(state.resting, [&](const auto& r) {
                          return r.block < job.blocks.size();
                        });
  if (is_known) return state;
  MemoryState fresh;
  fresh.digest = digest;
  fresh.ranks.resize(ranks);
  return fresh;
}

bool facts_fit(const JobFacts& job) {
  const MemoryFacts& facts = job.memory;
  const std::size_t ranks = job.ranks();
  const auto one_a_rank = [ranks](std::size_t n) { return n == 0 || n == ranks; };
  return !facts.models.empty() && one_a_rank(facts.model_of_rank.size()) &&
         one_a_rank(facts.limit_bytes.size()) &&
         std::ranges::all_of(facts.model_of_rank,
                             [&](std::uint32_t m) { return m < facts.models.size(); }) &&
         std::ranges::all_of(
             facts.models, [&](const auto& model) { return shape_fits(model, job.blocks.size()); });
}

MemoryRound look_at_round(const PolicyInput& input, MemoryState state) {
  MemoryRound round;
  round.state = std::move(state);
  end_rests(input, round);
  learn_failures(input, round);
  round.allowed = allowed_of_blocks(input, round.state.resting);
  round.samples = samples_of_ranks(input.job, input.plan);
  look_at_ranks(input, round);
  return round;
}

std::vector<double> settled_work_factors(const PolicyInput& drafted, MemoryState state) {
  MemoryRound round;
  round.state = std::move(state);
  round.allowed = allowed_of_blocks(drafted, round.state.resting);
  round.samples = samples_of_ranks(drafted.job, drafted.plan);
  for (RankMemoryState& known : round.state.ranks) known.samples = 0;  // of earlier shares
  Views views(drafted, round);
  std::vector<double> factors;
  factors.reserve(round.state.ranks.size());
  for (std::size_t r = 0; r < round.state.ranks.size(); ++r) {
    RankMemoryState& known = round.state.ranks[r];
    RankView view = views.of(r);
    set_correction(drafted.summary.round, known, view);
    Eagerness eagerness = eagerness_of(round.state, known);
    eagerness.room_rounds = kRoomRounds;  // as if it had waited these rounds
    const Choice choice = priced(view, choose(view, eagerness));
    const bool moves = choice.move != Move::stay && choice.feasible && view.now;
    const auto step_us = static_cast<double>(view.model->step_us);
    factors.push_back(moves && step_us > 0 ? (step_us + static_cast<double>(choice.cost.added_us)) /
                                                 (step_us + static_cast<double>(view.now->added_us))
                                           : 1);
  }
  return factors;
}

MemoryRound look_at_draft(const PolicyInput& drafted, const Plan& newest, MemoryState state) {
  MemoryRound round;
  round.state = std::move(state);
  round.allowed = allowed_of_blocks(drafted, round.state.resting);
  round.samples = samples_of_ranks(drafted.job, drafted.plan);
  const std::vector<std::uint64_t> until_then = samples_of_ranks(drafted.job, newest);
  for (std::size_t r = 0; r < round.samples.size() && r < until_then.size(); ++r) {
    round.samples[r] = std::max(round.samples[r], until_then[r]);
  }
  Views views(drafted, round);
  round.ranks.reserve(round.state.ranks.size());
  const Eagerness none{.stays = true};
  for (std::size_t r = 0; r < round.state.ranks.size(); ++r) {
    RankView view = views.of(r);
    set_correction(drafted.summary.round, round.state.ranks[r], view);
    view.choice = priced(view, choose_for_share(view, none, round.state.ranks[r].samples));
    keep_view(view, round);
  }
  return round;
}

}  // namespace cox
