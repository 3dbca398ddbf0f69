#include "coordinator/policies/memory/memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/estimates/estimates.h"
#include "coordinator/planner/memory_facts.h"
#include "coordinator/policies/memory/rank_memory.h"

namespace cox {
namespace {

using planner::mib_text;

constexpr std::size_t kGroupsTold = 4;
constexpr std::array<std::string_view, kMemoryKinds> kDone = {"kept", "recomputed", "offloaded",
                                                              "tiled"};

// Ranks that end up with the same actions. Bytes are at each rank's share.
struct RankGroup {
  std::vector<std::size_t> ranks;  // ascending
  bool moves = false;
  std::span<const MemoryAction> actions;
  std::int64_t added_us = 0;      // predicted
  std::int64_t peak_bytes = 0;    // predicted and corrected: the highest of the group
  std::int64_t budget_bytes = 0;  // the lowest of the group
  std::int64_t keep_bytes = 0;    // with the fastest plan: the highest of the group
  std::int64_t step_us = 0;
};

// --- sentences: bytes in MiB, time in percent of a step ---------------------------------------

// Returns "+8.3 % time" of a step, or "+12.0 ms" if the step's time is not known.
std::string added_time(std::int64_t added_us, std::int64_t step_us) {
  const auto added = static_cast<double>(added_us);
  if (step_us <= 0) return concat("+", fixed(added / 1000, 1), " ms");
  return concat("+", fixed(100 * added / static_cast<double>(step_us), 1), " % time");
}

// Returns " (3 at level 1 of 7, 9 at level 4, 2 in full)", or nothing if all are recomputed in
// full.
std::string levels_text(std::span<const MemoryAction> actions) {
  std::string text;
  for (unsigned n = 1; n <= kRecomputeLevels; ++n) {
    const auto count = std::ranges::count(actions, recompute_level(n));
    if (count == 0) continue;
    text += concat(text.empty() ? "" : ", ", count, " at level ", n);
    if (text.find(" of ") == std::string::npos) text += concat(" of ", kRecomputeLevels);
  }
  if (text.empty()) return text;
  const auto in_full = std::ranges::count(actions, MemoryAction::recompute);
  return concat(" (", text, in_full > 0 ? concat(", ", in_full, " in full") : "", ")");
}

// Returns "12 of 16 blocks recomputed, 2 offloaded" or "all 16 blocks kept".
std::string mix_text(std::span<const MemoryAction> actions) {
  std::array<std::size_t, kMemoryKinds> counts{};
  for (const MemoryAction action : actions) ++counts[static_cast<std::size_t>(kind_of(action))];
  if (counts[0] == actions.size()) return concat("all ", actions.size(), " blocks kept");
  std::string text;
  for (std::size_t a = 1; a < counts.size(); ++a) {
    if (counts[a] == 0) continue;
    text += text.empty() ? concat(counts[a], " of ", actions.size(), " blocks ")
                         : concat(", ", counts[a], " ");
    text += kDone[a];
    if (is_recompute(static_cast<MemoryAction>(a))) text += levels_text(actions);
  }
  return text;
}

std::string group_text(const RankGroup& group, std::size_t world) {
  const bool keeps_all = std::ranges::all_of(
      group.actions, [](MemoryAction action) { return action == MemoryAction::keep; });
  return concat(ranks_text(group.ranks, world), ": ", mix_text(group.actions), ", predicted peak ",
                mib_text(group.peak_bytes),
                group.budget_bytes >= kNoBudget ? ", no budget"
                                                : concat(" of ", mib_text(group.budget_bytes)),
                keeps_all ? "" : concat(" (fastest plan: ", mib_text(group.keep_bytes), ")"), ", ",
                added_time(group.added_us, group.step_us));
}

std::string corrected_by(std::int64_t correction) {
  if (correction == 0) return {};
  return concat(" (corrected by ", correction > 0 ? "+" : "-", mib_text(std::abs(correction)), ")");
}

// Names the techniques that the user turned off or fixed.
std::string withheld_text(const MemoryConfig& config) {
  std::string text;
  const auto add = [&text](bool is_off, std::string_view key) {
    if (is_off) text += concat(text.empty() ? "" : ", ", key);
  };
  add(!config.recompute, "memory.recompute is off");
  add(!config.offload, "memory.offload is off");
  add(!config.tile, "memory.tile is off");
  add(!config.forbid.empty(), "memory.forbid is set");
  add(!config.force.empty(), "memory.force is set");
  add(config.most_recomputed < 1, "memory.most_recomputed is below 1");
  return text.empty() ? text : concat("; lift these limits (", text, ")");
}

// Empty if the rank has as many samples as at the measurement of its bytes.
std::string at_share(const RankView& view) {
  if (view.samples == view.model->samples) return {};
  return concat(" with its share of ", view.samples, " samples a step");
}

std::string explain_over_budget(std::size_t rank, const RankView& view,
                                std::int64_t measured_bytes) {
  const std::string budget = mib_text(view.budget.bytes);
  if (view.ran_out) {
    return concat("rank ", rank, " ran out of memory under a plan of ",
                  mib_text(view.now->peak_bytes), " (budget: ", budget,
                  ") and ran its step again with less");
  }
  if (view.ends_slow_plan) {
    return concat("rank ", rank, " is no longer slow, and its plan of ",
                  mib_text(view.now->peak_bytes), " does not fit its budget of ", budget);
  }
  if (view.breached) {
    return concat("rank ", rank, " peaked at ", mib_text(measured_bytes), ", ",
                  mib_text(measured_bytes - view.budget.bytes), " above its budget of ", budget,
                  " (predicted: ", view.now ? mib_text(view.now->peak_bytes) : "unknown", ")");
  }
  if (!view.now) {
    return concat("the memory of rank ", rank, "'s plan is not known; its budget is ", budget);
  }
  const std::int64_t peak = view.now->peak_bytes + view.correction_bytes;
  if (peak <= view.budget.bytes) {
    return concat("a plan of ", mib_text(view.ceiling_bytes), " or more was measured above rank ",
                  rank, "'s budget of ", budget);
  }
  return concat("rank ", rank, " would peak at ", mib_text(peak), at_share(view),
                corrected_by(view.correction_bytes), ", ", mib_text(peak - view.budget.bytes),
                " above its budget of ", budget);
}

std::string explain_room(const PolicyInput& input, std::size_t rank, const RankView& view) {
  const std::string budget = mib_text(view.budget.bytes);
  const std::string saved = percent_text(view.choice.worth, 1);
  if (const SlowRank* slow = find_slow(input.estimates, rank_id(rank))) {
    return concat("rank ", rank, " is ", percent_text(slow->slowdown_ratio - 1, 0),
                  " slower than the others, so it gets the lightest plan that fits its budget of ",
                  budget, ", which saves ", saved, " of its step");
  }
  return concat("rank ", rank, " has room in its budget of ", budget, ": a lighter plan saves ",
                saved, " of the step");
}

// Adds a margin, because measurements differ a little from one start of a job to the next, and in
// FP8 so does the smallest peak. The budget named to the user must still be enough.
std::int64_t surely_enough_bytes(std::int64_t least_bytes) {
  constexpr std::int64_t kShownBytes = 64 << 10;  // as mib_text() rounds
  return least_bytes + std::max(least_bytes / 20, kShownBytes);
}

// Names the budget that is too small, the missing bytes, and settings that would help.
std::string explain_infeasible(std::size_t rank, const RankView& view, const MemoryConfig& config) {
  const std::int64_t least = view.least_bytes + view.correction_bytes;
  return concat("the budget of rank ", rank, ", ", mib_text(view.budget.bytes),
                ", cannot be met: the smallest peak is ", mib_text(least),
                corrected_by(view.correction_bytes), ", ",
                mib_text(std::max<std::int64_t>(least - view.budget.bytes, 0)),
                " more; give it at least ", mib_text(surely_enough_bytes(least)),
                " or make the micro-batch smaller", withheld_text(config));
}

std::string explain_failure(const JobFacts& job, const ActionEvent& event,
                            std::uint32_t retry_rounds) {
  return concat("block ", job.blocks[event.block], " failed under ", in_words(event.action),
                " on rank ", event.rank, event.what.empty() ? "" : concat(" (", event.what, ")"),
                "; no rank uses ", level_of(event.action) > 0 ? "any recompute" : "it",
                " there for ", retry_rounds, " rounds");
}

std::string explain_retry(const JobFacts& job, const ActionEvent& event,
                          std::uint32_t retry_rounds) {
  return concat("block ", job.blocks[event.block], " has had no ", event.action, " for ",
                retry_rounds, " rounds after a failure and may be planned with it again");
}

// --- the user's rules -------------------------------------------------------------------------

// Reports how many blocks have a forced action, and the forced actions that cannot be applied.
// Rules that fit no block are refused before the first round.
std::vector<Reason> explain_rules(const JobFacts& job, const MemoryConfig& config) {
  std::vector<Reason> findings;
  for (const ActionRule& rule : config.force) {
    if (job.capabilities.can(rule.value)) continue;
    findings.push_back(reason_of(ReasonCode::not_capable,
                                 concat("memory.force has ", rule.text(),
                                        ", which this job cannot apply; the blocks are kept")));
  }
  const auto forced = std::ranges::count_if(
      job.blocks, [&](const std::string& block) { return forcing_rule(config, block) != nullptr; });
  if (forced > 0) {
    findings.push_back(
        reason_of(ReasonCode::memory_rules, concat("memory.force: the user sets the action of ",
                                                   forced, " of ", job.blocks.size(), " blocks")));
  }
  return findings;
}

// Returns why a block may not have the action.
std::string why_not(const MemoryConfig& config, const std::string& block, MemoryAction action) {
  if (const ActionRule* rule = forcing_rule(config, block)) {
    return concat("block ", block, " must not have ", in_words(action), ": memory.force has ",
                  rule->text());
  }
  const auto rule = std::ranges::find_if(config.forbid, [&](const ActionRule& forbidden) {
    return forbidden.value == kind_of(action) && fits_pattern(forbidden.pattern, block);
  });
  if (rule != config.forbid.end()) {
    return concat("block ", block, " must not have ", in_words(action), ": memory.forbid has ",
                  rule->text());
  }
  return concat("block ", block, " cannot have ", in_words(action),
                ": that action is switched off, or this job cannot apply it");
}

// Explains why a plan in force is no longer allowed: names the first block with a forbidden action.
// REQUIRES: such a block exists.
Reason explain_rule(const PolicyInput& input, const MemoryRound& round, const RankView& view) {
  const std::vector<MemoryAction>& actions = input.plan.profiles[view.profile.value()];
  std::size_t block = 0;
  while (block + 1 < actions.size() && contains(round.allowed[block], actions[block])) ++block;
  const MemoryAction action = actions[block];
  const auto& resting = round.state.resting;
  const bool rests = std::ranges::any_of(resting, [&](const RestingAction& rest) {
    return rest.block == block && rest.action == kind_of(action);
  });
  const std::string& name = input.job.blocks[block];
  Reason reason =
      rests ? reason_of(ReasonCode::memory_block_failed,
                        concat("block ", name, " failed under ", kind_of(action),
                               ", which is not planned there for now"))
            : reason_of(ReasonCode::memory_rules, why_not(input.config.memory, name, action));
  reason.block = static_cast<std::int32_t>(block);
  return reason;
}

// --- groups of ranks --------------------------------------------------------------------------

MemoryCost cost_of_rank(const RankView& view) {
  return view.choice.move == Move::stay ? view.now.value_or(MemoryCost{}) : view.choice.cost;
}

RankGroup group_of(const PolicyInput& input, const RankView& view) {
  RankGroup group;
  group.moves = view.choice.move != Move::stay;
  group.budget_bytes = kNoBudget;
  group.step_us = view.model->step_us;
  group.added_us = cost_of_rank(view).added_us;
  if (group.moves) {
    group.actions = (*view.front)[view.choice.point].actions;
  } else {
    group.actions = input.plan.profiles[view.profile.value()];
  }
  return group;
}

// Returns groups in the order of their first ranks.
std::vector<RankGroup> groups_of(const PolicyInput& input, const MemoryRound& round) {
  std::vector<RankGroup> groups;
  std::map<std::tuple<bool, std::size_t, const MemoryFront*>, std::size_t> known;
  for (std::size_t r = 0; r < round.ranks.size(); ++r) {
    const RankView& view = round.ranks[r];
    const bool moves = view.choice.move != Move::stay;
    const std::size_t at = moves ? view.choice.point : view.profile.value();
    const auto [entry, is_new] = known.try_emplace({moves, at, view.front}, groups.size());
    if (is_new) groups.push_back(group_of(input, view));
    RankGroup& group = groups[entry->second];
    group.ranks.push_back(r);
    group.peak_bytes =
        std::max(group.peak_bytes, cost_of_rank(view).peak_bytes + view.correction_bytes);
    group.keep_bytes = std::max(group.keep_bytes, view.keep_bytes);
    group.budget_bytes = std::min(group.budget_bytes, view.budget.bytes);
  }
  return groups;
}

// --- a change ---------------------------------------------------------------------------------

// Returns the moving rank that best explains the change: rules first, then budgets that cannot be
// met, then measured breaches, then predicted ones, then room. REQUIRES: some rank moves.
std::size_t leading_rank(const MemoryRound& round) {
  const auto weight = [](const RankView& view) {
    const Choice& choice = view.choice;
    if (choice.move == Move::stay) return -1;
    if (choice.move == Move::rules) return 4;
    if (!choice.feasible) return 3;
    if (choice.move == Move::breach) return 2;
    return choice.move == Move::over_budget ? 1 : 0;
  };
  const auto leading = std::ranges::max_element(
      round.ranks, [&](const RankView& a, const RankView& b) { return weight(a) < weight(b); });
  return static_cast<std::size_t>(leading - round.ranks.begin());
}

Reason explain_move(const PolicyInput& input, const MemoryRound& round) {
  const std::size_t rank = leading_rank(round);
  const RankView& view = round.ranks[rank];
  const RankMemoryState& known = round.state.ranks[rank];
  if (view.choice.move == Move::rules) return explain_rule(input, round, view);
  if (!view.choice.feasible) {
    return reason_of(ReasonCode::memory_infeasible,
                     explain_infeasible(rank, view, input.config.memory));
  }
  if (view.choice.move != Move::lighter) {
    const bool breach = view.choice.move == Move::breach && !view.ends_slow_plan;
    return reason_of(breach ? ReasonCode::memory_breach : ReasonCode::memory_over_budget,
                     explain_over_budget(rank, view, known.measured_bytes));
  }
  if (round.state.retries) {
    return reason_of(ReasonCode::memory_block_retried,
                     "the pause after an action's failure is over, and the action is tried again");
  }
  return reason_of(known.straggles ? ReasonCode::memory_straggler : ReasonCode::memory_room,
                   explain_room(input, rank, view));
}

// Ranks with equal actions share a profile.
SetActions actions_of(const std::vector<RankGroup>& groups, std::size_t world) {
  SetActions change;
  std::map<std::vector<MemoryAction>, ProfileId> profiles;
  std::vector<ProfileId> rank_profile(world);
  for (const RankGroup& group : groups) {
    const ProfileId next(static_cast<ProfileId::rep>(change.profiles.size()));
    std::vector<MemoryAction> actions(group.actions.begin(), group.actions.end());
    const auto [entry, is_new] = profiles.try_emplace(actions, next);
    if (is_new) change.profiles.push_back(std::move(actions));
    for (const std::size_t rank : group.ranks) rank_profile[rank] = entry->second;
  }
  if (change.profiles.size() > 1) change.rank_profile = std::move(rank_profile);
  return change;
}

// Returns the ratio of a rank's step to its model's: by samples, and by slowness.
double pace_of(const PolicyInput& input, std::size_t rank, const RankView& view) {
  double pace = 1;
  if (view.model->samples > 0) {
    pace = static_cast<double>(view.samples) / static_cast<double>(view.model->samples);
  }
  const SlowRank* slow = find_slow(input.estimates, rank_id(rank));
  return slow == nullptr ? pace : pace * std::max(slow->slowdown_ratio, 1.0);
}

// Ranks run in lockstep, so the longest step decides. The times of actions were measured with the
// noise of a step, before and after; hence the relative error of a predicted time.
Forecast forecast_of(const PolicyInput& input, const MemoryRound& round) {
  std::int64_t peak_bytes = 0;
  double before_us = 0;
  double after_us = 0;
  bool knows_steps = true;
  for (std::size_t r = 0; r < round.ranks.size(); ++r) {
    const RankView& view = round.ranks[r];
    const MemoryCost after = cost_of_rank(view);
    const std::int64_t now_us = view.model->step_us + (view.now ? view.now->added_us : 0);
    const double pace = pace_of(input, r, view);
    before_us = std::max(before_us, pace * static_cast<double>(now_us));
    after_us = std::max(after_us, pace * static_cast<double>(view.model->step_us + after.added_us));
    knows_steps &= view.model->step_us > 0;
    peak_bytes = std::max(peak_bytes, after.peak_bytes + view.correction_bytes);
  }
  Forecast forecast;
  if (knows_steps && before_us > 0 && after_us > 0) {
    const double ratio = after_us / before_us;
    const double error = std::sqrt(2.0) * step_pace(input.effects).noise;
    forecast = forecast_of_time(ratio, error * std::abs(1 - ratio));
  }
  forecast.peak_bytes = peak_bytes;
  return forecast;
}

// Only a lighter plan saves time. A budget or a rule asks for all other moves.
Motive motive_of(const MemoryRound& round) {
  const bool is_lighter = std::ranges::all_of(round.ranks, [](const RankView& view) {
    return view.choice.move == Move::stay || view.choice.move == Move::lighter;
  });
  return is_lighter ? Motive::gain : Motive::necessity;
}

Proposal change_of(const PolicyInput& input, const MemoryRound& round) {
  const std::vector<RankGroup> groups = groups_of(input, round);
  const std::size_t world = round.ranks.size();
  Reason reason = explain_move(input, round);
  reason.forecast = forecast_of(input, round);
  std::size_t moving = 0;
  std::size_t told = 0;
  for (const RankGroup& group : groups) {
    if (!group.moves) continue;
    if (moving == 0) reason.rank = rank_id(group.ranks.front());
    moving += group.ranks.size();
    if (told++ < kGroupsTold) reason.text += concat("; ", group_text(group, world));
  }
  if (moving > 1) reason.rank = RankId(-1);
  if (told > kGroupsTold) reason.text += concat("; and ", told - kGroupsTold, " more plans");
  return {actions_of(groups, world), std::move(reason), motive_of(round)};
}

// --- no change --------------------------------------------------------------------------------

Reason explain_fit(const MemoryRound& round, const std::vector<RankGroup>& groups) {
  const auto tightest =
      std::ranges::min_element(groups, [](const RankGroup& a, const RankGroup& b) {
        return a.budget_bytes - a.peak_bytes < b.budget_bytes - b.peak_bytes;
      });
  std::string text = concat("nothing changes: ", group_text(*tightest, round.ranks.size()));
  if (groups.size() > 1) text += concat("; ", groups.size() - 1, " other plans have more room");
  double worth = 0;
  for (const RankView& view : round.ranks) worth = std::max(worth, view.choice.worth);
  if (worth > 0) {
    text += concat("; a lighter plan would save ", percent_text(worth, 1), " of a step, ",
                   percent_text(kWorthIt, 1), " are worth a change");
  }
  return reason_of(ReasonCode::memory_fits, std::move(text), Outcome::unchanged);
}

// Why nothing changes, and the rank concerned.
struct Rest {
  ReasonCode code = ReasonCode::memory_fits;
  std::size_t rank = 0;
};

Rest rest_of(const MemoryRound& round) {
  if (round.infeasible) return {ReasonCode::memory_infeasible, *round.infeasible};
  if (round.needs_limit) return {ReasonCode::memory_unknown, *round.needs_limit};
  return {};
}

Reason explain_rest(const PolicyInput& input, const MemoryRound& round, const Rest& rest) {
  if (rest.code == ReasonCode::memory_fits) return explain_fit(round, groups_of(input, round));
  std::string text =
      rest.code == ReasonCode::memory_infeasible
          ? explain_infeasible(rest.rank, round.ranks[rest.rank], input.config.memory)
          : concat("the memory limit of rank ", rest.rank,
                   " is not known, so memory.budget cannot be a fraction of the limit; give "
                   "memory.budget in bytes, such "
                   "as 6GiB");
  return reason_of(rest.code, std::move(text), Outcome::unchanged, rank_id(rest.rank));
}

// Remembers the reason. Returns false if the last round had the same reason.
bool is_news(MemoryState& state, ReasonCode code, std::uint64_t plan) {
  const bool is_same = state.told_code == code && state.told_plan == plan;
  state.told_code = code;
  state.told_plan = plan;
  return !is_same;
}

// --- the round --------------------------------------------------------------------------------

std::vector<Reason> explain_events(const PolicyInput& input, MemoryRound& round) {
  std::vector<Reason> findings;
  if (!std::exchange(round.state.told_rules, true)) {
    findings = explain_rules(input.job, input.config.memory);
  }
  const std::uint32_t rounds = input.config.memory.retry_rounds;
  const auto tell = [&](ReasonCode code, const ActionEvent& event, std::string text) {
    findings.push_back(reason_of(code, std::move(text), {}, event.rank));
    findings.back().block = static_cast<std::int32_t>(event.block);
  };
  for (const ActionEvent& event : round.failed) {
    tell(ReasonCode::memory_block_failed, event, explain_failure(input.job, event, rounds));
  }
  for (const ActionEvent& event : round.rested) {
    tell(ReasonCode::memory_block_retried, event, explain_retry(input.job, event, rounds));
  }
  return findings;
}

PolicyOutput decide_round(const PolicyInput& input, MemoryState known) {
  MemoryRound round = look_at_round(input, std::move(known));
  PolicyOutput output;
  output.findings = explain_events(input, round);
  output.most_samples = std::move(round.most_samples);
  if (round.moves) {
    output.proposals.push_back(change_of(input, round));
    is_news(round.state, ReasonCode::unspecified, 0);
  } else {
    round.state.retries = false;
    const Rest rest = rest_of(round);
    if (is_news(round.state, rest.code, input.plan.id.number)) {
      output.findings.push_back(explain_rest(input, round, rest));
    }
  }
  output.state = PolicyState::of(std::move(round.state));
  return output;
}

// Reports that nothing can be decided.
PolicyOutput without_facts(const PolicyInput& input, MemoryState state) {
  PolicyOutput output;
  const char* const text =
      input.job.memory.models.empty()
          ? "no plan is made: the memory of this job's blocks was not measured"
          : "no plan is made: the measurements are from another job (ranks or blocks differ)";
  if (is_news(state, ReasonCode::memory_unknown, 0)) {
    output.findings.push_back(reason_of(ReasonCode::memory_unknown, text, Outcome::unchanged));
  }
  output.state = PolicyState::of(std::move(state));
  return output;
}

}  // namespace

PolicyOutput MemoryPolicy::propose(const PolicyInput& input, PolicyState kept) const {
  MemoryState state = take_memory_state(std::move(kept), input.job, input.config.memory);
  if (!facts_fit(input.job)) return without_facts(input, std::move(state));
  return decide_round(input, std::move(state));
}

// Plans are numbered anew. Repeated in the first round's record, because readers look there.
PolicyOutput MemoryPolicy::at_start(const PolicyInput& input, PolicyState kept) const {
  const auto forget_words = [](MemoryState& state) {
    state.told_rules = false;
    is_news(state, ReasonCode::unspecified, 0);
  };
  MemoryState state = take_memory_state(std::move(kept), input.job, input.config.memory);
  for (RankMemoryState& rank : state.ranks) {
    rank.plan_seen.reset();
    rank.samples = 0;
  }
  forget_words(state);
  PolicyOutput output;
  if (facts_fit(input.job)) {
    output = decide_round(input, std::move(state));
    state = output.state.take_or_fresh<MemoryState>();
    forget_words(state);
  }
  output.state = PolicyState::of(std::move(state));
  return output;
}

PolicyOutput MemoryPolicy::fit(const PolicyInput& input, const Plan& draft,
                               PolicyState kept) const {
  MemoryState state = take_memory_state(std::move(kept), input.job, input.config.memory);
  PolicyOutput output;
  if (facts_fit(input.job)) {
    const PolicyInput drafted{input.job,     input.config,  draft,
                              input.signals, input.summary, input.estimates,
                              input.history, input.effects, {}};
    MemoryRound round = look_at_draft(drafted, input.plan, std::move(state));
    if (round.moves) {
      output.proposals.push_back(change_of(drafted, round));
      is_news(round.state, ReasonCode::unspecified, 0);
    }
    state = std::move(round.state);
  }
  output.state = PolicyState::of(std::move(state));
  return output;
}

std::vector<double> MemoryPolicy::work_factors(const PolicyInput& input, const Plan& draft,
                                               const PolicyState& kept) const {
  if (!facts_fit(input.job)) return {};
  const PolicyInput drafted{input.job,     input.config,  draft,
                            input.signals, input.summary, input.estimates,
                            input.history, input.effects, {}};
  return settled_work_factors(drafted, take_memory_state(kept, input.job, input.config.memory));
}

std::vector<std::int64_t> memory_budgets(const JobFacts& job, const Config& config,
                                         const ControlState& state) {
  std::vector<std::int64_t> budgets;
  if (mode_of(config, "memory") == PolicyMode::off || !facts_fit(job)) {
    return budgets;
  }
  PolicyState kept;
  for (const NamedPolicyState& named : state.policies) {
    if (named.policy == "memory") kept = named.state;
  }
  const MemoryFacts& facts = job.memory;
  const MemoryState known = take_memory_state(std::move(kept), job, config.memory);
  budgets.resize(known.ranks.size());
  for (std::size_t r = 0; r < budgets.size(); ++r) {
    const std::size_t model = facts.model_of_rank.empty() ? 0 : facts.model_of_rank[r];
    RankMemoryState rank = known.ranks[r];
    if (rank.limit_bytes == 0 && !facts.limit_bytes.empty()) {
      rank.limit_bytes = facts.limit_bytes[r];
    }
    const std::int64_t keep_bytes = facts.models[model].front.back().peak_bytes;
    const RankBudget budget = budget_of_rank(config.memory, rank, rank_id(r), keep_bytes);
    budgets[r] = budget.bytes == kNoBudget ? 0 : budget.bytes;
  }
  return budgets;
}

}  // namespace cox
