#include "coordinator/policies/memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/memory_round.h"
#include "coordinator/policies/memory_rules.h"
#include "coordinator/policies/memory_words.h"

namespace cox {
namespace {

constexpr std::size_t kGroupsTold = 4;

Reason say(ReasonCode code, Outcome outcome, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = outcome;
  reason.text = std::move(text);
  return reason;
}

// Speaks for one round.
class Speaker {
 public:
  Speaker(const PolicyInput& input, MemoryNotes& notes)
      : input_(input), notes_(notes), round_(input, notes) {}

  PolicyOutput run() && {
    tell_rules();
    tell_actions();
    group_ranks();
    if (moved_.empty()) {
      notes_.retrying = 0;
      tell_rest();
    } else {
      notes_.told = 1;
      propose();
    }
    output_.state = notes_.state();
    return std::move(output_);
  }

 private:
  void tell_rules() {
    if (notes_.told != 0) return;
    for (Reason& reason : rule_findings(input_.job, input_.config.memory)) {
      output_.findings.push_back(std::move(reason));
    }
  }

  void tell_actions() {
    const unsigned rounds = input_.config.memory.retry_rounds;
    for (const ActionEvent& event : round_.failed()) {
      Reason reason = say(ReasonCode::memory_block_failed, Outcome::reported,
                          failure_text(input_.job, event, rounds));
      reason.rank = event.rank;
      reason.block = static_cast<std::int32_t>(event.block);
      output_.findings.push_back(std::move(reason));
    }
    for (const ActionEvent& event : round_.rested()) {
      Reason reason = say(ReasonCode::memory_block_retried, Outcome::reported,
                          retry_text(input_.job, event, rounds));
      reason.block = static_cast<std::int32_t>(event.block);
      output_.findings.push_back(std::move(reason));
    }
  }

  // Ranks with the same actions, in the order of their first ranks.
  void group_ranks() {
    std::map<std::tuple<bool, std::size_t, const MemoryFront*>, std::size_t> known;
    for (std::size_t r = 0; r < round_.ranks().size(); ++r) {
      const RankView& view = round_.ranks()[r];
      const bool moves = view.choice.move != Move::stay;
      if (moves) moved_.push_back(r);
      const std::size_t at = moves ? view.choice.point : view.now_class.value();
      const auto [entry, is_new] = known.try_emplace({moves, at, view.front}, groups_.size());
      if (is_new) groups_.push_back(group_of(view));
      RankGroup& group = groups_[entry->second];
      group.ranks.push_back(r);
      group.peak_bytes =
          std::max(group.peak_bytes, group.cost.peak_bytes + view.place.correction_bytes);
      group.budget_bytes = std::min(group.budget_bytes, view.budget.bytes);
    }
  }

  RankGroup group_of(const RankView& view) const {
    RankGroup group;
    group.budget_bytes = kNoBudget;
    group.keep_bytes = view.front->back().peak_bytes;
    group.step_us = view.model->step_us;
    if (view.choice.move == Move::stay) {
      group.actions = input_.plan.classes[view.now_class.value()];
      group.cost = view.now.value_or(MemoryCost{});
    } else {
      const MemoryPoint& point = (*view.front)[view.choice.point];
      group.actions = point.actions;
      group.cost = {point.peak_bytes, point.added_us};
    }
    return group;
  }

  // The rank that says most about why the plan changes: rules, then what cannot be met, then
  // breaches, then what would be one, then room.
  std::size_t leading_rank() const {
    const auto weight = [this](std::size_t r) {
      const Choice& choice = round_.ranks()[r].choice;
      if (choice.move == Move::rules) return 4;
      if (!choice.feasible) return 3;
      if (choice.move == Move::breach) return 2;
      return choice.move == Move::over_budget ? 1 : 0;
    };
    return *std::max_element(moved_.begin(), moved_.end(),
                             [&](std::size_t a, std::size_t b) { return weight(a) < weight(b); });
  }

  Reason reason_to_move() const {
    const std::size_t rank = leading_rank();
    const RankView& view = round_.ranks()[rank];
    const auto outcome = Outcome::unspecified;
    if (view.choice.move == Move::rules) {
      return rule_reason(input_, view, round_.allowed(), notes_.resting);
    }
    if (!view.choice.feasible) {
      return say(ReasonCode::memory_infeasible, outcome,
                 infeasible_text(rank, view, input_.config.memory));
    }
    if (view.choice.move != Move::lighter) {
      const bool breach = view.choice.move == Move::breach;
      return say(breach ? ReasonCode::memory_breach : ReasonCode::memory_over_budget, outcome,
                 over_budget_text(rank, view, static_cast<std::int64_t>(notes_.measured[rank])));
    }
    if (notes_.retrying != 0) {
      return say(ReasonCode::memory_block_retried, outcome,
                 "an action has rested and is tried again");
    }
    const bool straggles = notes_.straggles[rank] != 0;
    return say(straggles ? ReasonCode::memory_straggler : ReasonCode::memory_room, outcome,
               room_text(rank, view, straggles, notes_.slowness[rank]));
  }

  void propose() {
    Reason reason = reason_to_move();
    if (moved_.size() == 1) {
      reason.rank = RankId(static_cast<std::int32_t>(moved_.front()));
    }
    std::size_t told = 0;
    for (const RankGroup& group : groups_) {
      if (!std::binary_search(moved_.begin(), moved_.end(), group.ranks.front())) continue;
      if (told++ < kGroupsTold) reason.text += "; " + group_text(group, round_.ranks().size());
    }
    if (told > kGroupsTold) reason.text += sentence("; and %zu more plans", told - kGroupsTold);
    output_.proposals.push_back({new_actions(), std::move(reason)});
  }

  SetActions new_actions() const {
    SetActions change;
    std::map<std::vector<MemoryAction>, ClassId> classes;
    std::vector<ClassId> rank_class(round_.ranks().size());
    for (const RankGroup& group : groups_) {
      const ClassId next(static_cast<ClassId::rep>(change.classes.size()));
      std::vector<MemoryAction> actions(group.actions.begin(), group.actions.end());
      const auto [entry, is_new] = classes.try_emplace(actions, next);
      if (is_new) change.classes.push_back(std::move(actions));
      for (const std::size_t rank : group.ranks) rank_class[rank] = entry->second;
    }
    if (change.classes.size() > 1) change.rank_class = std::move(rank_class);
    return change;
  }

  // Why nothing changes, when that is news.
  void tell_rest() {
    Reason reason = reason_to_rest();
    const double now = static_cast<double>(reason.code) * 1e12 +
                       static_cast<double>(input_.plan.id.number % 1000000000000u) + 2;
    if (std::exchange(notes_.told, now) != now) output_.findings.push_back(std::move(reason));
  }

  Reason reason_to_rest() const {
    for (std::size_t r = 0; r < round_.ranks().size(); ++r) {
      const RankView& view = round_.ranks()[r];
      if (view.choice.feasible) continue;
      Reason reason = say(ReasonCode::memory_infeasible, Outcome::unchanged,
                          infeasible_text(r, view, input_.config.memory));
      reason.rank = RankId(static_cast<std::int32_t>(r));
      return reason;
    }
    for (std::size_t r = 0; r < round_.ranks().size(); ++r) {
      if (round_.ranks()[r].budget.needs_limit) return no_limit(r);
    }
    return fits();
  }

  Reason no_limit(std::size_t rank) const {
    Reason reason =
        say(ReasonCode::memory_unknown, Outcome::unchanged,
            sentence("the memory limit of rank %zu is not known, so a part of it is no budget; "
                     "give memory.budget in bytes, such as 6GiB",
                     rank));
    reason.rank = RankId(static_cast<std::int32_t>(rank));
    return reason;
  }

  Reason fits() const {
    const auto tightest = std::min_element(
        groups_.begin(), groups_.end(), [](const RankGroup& a, const RankGroup& b) {
          return a.budget_bytes - a.peak_bytes < b.budget_bytes - b.peak_bytes;
        });
    std::string text = "nothing changes: " + group_text(*tightest, round_.ranks().size());
    if (groups_.size() > 1)
      text += sentence("; %zu other plans have more room", groups_.size() - 1);
    double worth = 0;
    for (const RankView& view : round_.ranks()) worth = std::max(worth, view.choice.worth);
    if (worth > 0) {
      text += sentence("; a lighter plan would save %.1f %% of a step, %.1f %% are worth a change",
                       100 * worth, 100 * kWorthIt);
    }
    return say(ReasonCode::memory_fits, Outcome::unchanged, std::move(text));
  }

  const PolicyInput& input_;
  MemoryNotes& notes_;
  MemoryRound round_;
  std::vector<std::size_t> moved_;  // ascending
  std::vector<RankGroup> groups_;
  PolicyOutput output_;
};

// Nothing can be decided.
PolicyOutput tell_unknown(const PolicyInput& input, MemoryNotes& notes) {
  PolicyOutput output;
  const std::string_view what =
      input.job.memory.models.empty()
          ? "no plan is made: the memory of this job's blocks was not measured"
          : "no plan is made: what was measured is of another job (ranks or blocks differ)";
  const double now = static_cast<double>(ReasonCode::memory_unknown) * 1e12;
  if (std::exchange(notes.told, now) != now) {
    output.findings.push_back(
        say(ReasonCode::memory_unknown, Outcome::unchanged, std::string(what)));
  }
  output.state = notes.state();
  return output;
}

}  // namespace

PolicyOutput MemoryPolicy::propose(const PolicyInput& input, PolicyState state) const {
  MemoryNotes notes(state.take_or_fresh<NumbersState>(), input.job, input.config.memory);
  if (!facts_fit(input.job)) return tell_unknown(input, notes);
  return Speaker(input, notes).run();
}

// What is said here is said again in the first round, where everybody looks for it.
PolicyOutput MemoryPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  MemoryNotes notes(state.take_or_fresh<NumbersState>(), input.job, input.config.memory);
  std::fill(notes.plan_seen.begin(), notes.plan_seen.end(), 0.0);
  notes.told = 0;
  PolicyOutput output;
  if (facts_fit(input.job)) output = Speaker(input, notes).run();
  notes.told = 0;
  output.state = notes.state();
  return output;
}

}  // namespace cox
