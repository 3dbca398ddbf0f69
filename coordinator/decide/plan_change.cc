#include "coordinator/decide/plan_change.h"

#include <algorithm>
#include <set>

#include "coordinator/core/share_units.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

ChangeResult not_capable(const auto& what) {
  return {Outcome::vetoed, ReasonCode::not_capable, concat("this job cannot apply ", what)};
}

// Puts `candidate` in place of `plan` if the candidate is valid and differs in effect.
ChangeResult replace(Plan& plan, Plan candidate, const JobFacts& job) {
  const Status status = validate(candidate, job);
  if (!status.ok()) return {Outcome::vetoed, ReasonCode::invalid_proposal, status.message()};
  if (same_effect(plan, candidate)) return {Outcome::unchanged, {}, {}};
  plan = std::move(candidate);
  return {};
}

// Applies a change by the type of its field.
struct Applier {
  Plan& plan;
  const PlanChange& change;
  const JobFacts& job;

  template <class T>
  ChangeResult operator()(const PlanField<T>& field) const {
    const T& value = change.to.*field.member;
    if (!is_capable(field, value, job.capabilities)) {
      const std::string_view name = field.rules.change_name;
      return not_capable(name.empty() ? field.name : name);
    }
    Plan candidate = plan;
    candidate.*field.member = value;
    return replace(plan, std::move(candidate), job);
  }

  // In place, because a policy may set hundreds of blocks at once.
  ChangeResult operator()(const PlanField<std::vector<Precision>>&) const {
    const std::vector<Precision>& to = change.to.precision;
    const std::size_t first = change.first_block.value();
    const auto is_unknown = [](Precision p) { return static_cast<unsigned>(p) >= kPrecisions; };
    if (to.empty() || first + to.size() > plan.precision.size() ||
        std::ranges::any_of(to, is_unknown)) {
      return {Outcome::vetoed, ReasonCode::invalid_proposal,
              concat("precision of block ", first, " of ", plan.precision.size())};
    }
    for (const Precision precision : to) {
      if (!job.capabilities.can(precision)) return not_capable(precision);
    }
    const auto blocks = std::span(plan.precision).subspan(first, to.size());
    if (std::ranges::equal(to, blocks)) return {Outcome::unchanged, {}, {}};
    std::ranges::copy(to, blocks.begin());
    return {};
  }

  // Profiles and the assignment of ranks change together. An action that the job cannot apply
  // becomes keep, which is always correct and only costs memory.
  ChangeResult operator()(const PlanField<std::vector<ActionProfile>>&) const {
    Plan candidate = plan;
    candidate.profiles = change.to.profiles;
    candidate.rank_profile = change.to.rank_profile;
    bool clamped = false;
    for (ActionProfile& actions : candidate.profiles) {
      for (MemoryAction& action : actions) {
        if (action > kLastAction || job.capabilities.can(action)) continue;
        action = MemoryAction::keep;
        clamped = true;
      }
    }
    const ChangeResult result = replace(plan, std::move(candidate), job);
    if (!clamped || result.outcome == Outcome::vetoed) return result;
    if (result.outcome == Outcome::unchanged) return not_capable("these memory actions");
    return {Outcome::clamped, ReasonCode::not_capable,
            "actions that this job cannot apply became keep"};
  }

  // Rounds only move to later ones: a hold only becomes longer.
  ChangeResult operator()(const PlanField<RoundId>& field) const {
    const RoundId round = change.to.*field.member;
    if (round <= plan.*field.member) return {Outcome::unchanged, {}, {}};
    plan.*field.member = round;
    return {};
  }

  ChangeResult operator()(const PlanField<RollbackOrder>&) const {
    if (!job.capabilities.rollback) return not_capable("a rollback: no snapshots are taken");
    plan.rollback = {plan.rollback.ticket + 1, change.to.rollback.before_round};
    return {};
  }
};

std::set<Knob> knobs_in(const Condemned& condemned) {
  std::set<Knob> knobs;
  for (const AppliedChange& change : condemned.changes) knobs.insert(change.knob);
  return knobs;
}

std::string knobs_text(const Condemned& condemned) {
  std::string text;
  for (const Knob knob : knobs_in(condemned)) text += concat(text.empty() ? "" : ", ", knob);
  return text;
}

// Returns the blocks of a change of precision, within the job.
std::span<const Precision> blocks_of(const AppliedChange& change,
                                     std::span<const Precision> precision) {
  const std::size_t first = std::min<std::size_t>(change.first_block, precision.size());
  return precision.subspan(first, std::min<std::size_t>(change.blocks, precision.size() - first));
}

// Returns whether the plan still has the values of the change.
bool is_still_so(const AppliedChange& change, const Plan& after, const Plan& plan) {
  if (change.knob == Knob::precision) {
    return plan.precision.size() == after.precision.size() &&
           std::ranges::equal(blocks_of(change, plan.precision),
                              blocks_of(change, after.precision));
  }
  bool is_same = change.knob != Knob::other;
  for_each_field_of(change.knob, [&](const auto& field) {
    is_same = is_same && plan.*field.member == after.*field.member;
  });
  return is_same;
}

// Returns the change that restores the values before.
PlanChange inverse_of(const AppliedChange& change, const Plan& before) {
  PlanChange inverse{0, change.knob, before, BlockId(change.first_block)};
  for_each_field_of(change.knob, [&](const auto& field) {
    if (inverse.field == 0) inverse.field = field.id;
  });
  const std::span<const Precision> blocks = blocks_of(change, before.precision);
  inverse.to.precision.assign(blocks.begin(), blocks.end());
  return inverse;
}

// Returns the first rank that would get more samples than allowed; -1 = none.
RankId first_over(const Plan& before, const Plan& after, const JobFacts& job,
                  std::span<const std::uint64_t> most_samples) {
  if (!moves_samples(before, after) || most_samples.size() != job.ranks()) return RankId(-1);
  const std::vector<std::uint64_t> samples = samples_of_ranks(job, after);
  for (std::size_t r = 0; r < samples.size(); ++r) {
    if (samples[r] > most_samples[r]) return rank_id(r);
  }
  return RankId(-1);
}

double promise_of(const Condemned& condemned) {
  double ratio = 1;
  for (const AppliedChange& change : condemned.changes) ratio *= change.promised_ratio;
  return ratio;
}

std::string what_happened(const Condemned& condemned) {
  const RatioInterval& measured = condemned.measured;
  return concat("a step was to take ", percent_text(1 - promise_of(condemned), 1),
                " less, and takes ", change_text(measured.ratio),
                " (95 %: ", change_text(measured.low), " to ", change_text(measured.high), ")");
}

std::string plans_text(const Condemned& condemned) {
  if (condemned.first_plan == condemned.plan) return concat("plan ", condemned.plan);
  return concat("plans ", condemned.first_plan, " to ", condemned.plan);
}

}  // namespace

ChangeResult apply_change(Plan& plan, const PlanChange& change, const JobFacts& job) {
  ChangeResult result{Outcome::unchanged, {}, {}};
  for_each_plan_field([&](const auto& field) {
    if (field.id == change.field) result = Applier{plan, change, job}(field);
  });
  return result;
}

bool is_forced(const PlanChange& change, const OverrideConfig& force) {
  return change.knob == Knob::shares && !force.shares.empty();
}

std::optional<Reason> apply_forced(Plan& plan, const OverrideConfig& force, const JobFacts& job) {
  if (force.shares.empty() || force.shares == plan.shares) return std::nullopt;
  const ChangeResult result = apply_change(plan, SetShares{force.shares}, job);
  if (result.outcome == Outcome::vetoed) {
    return reason_of(result.code, concat("force.shares is not applied: ", result.note),
                     result.outcome);
  }
  return reason_of(ReasonCode::override_applied,
                   "force.shares: the user sets the shares of all ranks", result.outcome);
}

bool moves_samples(const Plan& before, const Plan& after) {
  return before.shares != after.shares || before.step_samples != after.step_samples;
}

std::string take_back(const Condemned& condemned, const JobFacts& job, const OverrideConfig& force,
                      std::span<const std::uint64_t> most_samples, Plan& plan) {
  Plan candidate = plan;
  for (const AppliedChange& change : condemned.changes) {
    if (!is_still_so(change, condemned.after.plan, plan)) {
      return concat("a later plan has changed ", change.knob, " since");
    }
    const PlanChange inverse = inverse_of(change, condemned.before.plan);
    if (is_forced(inverse, force)) return "force.shares sets the shares";
    const ChangeResult result = apply_change(candidate, inverse, job);
    if (result.outcome == Outcome::vetoed) return result.note;
  }
  if (same_effect(candidate, plan)) return "the plan already has the earlier values";
  const RankId over = first_over(plan, candidate, job, most_samples);
  if (over.value() >= 0) {
    return concat("rank ", over, " would get more samples than fit its memory");
  }
  plan = std::move(candidate);
  return {};
}

std::vector<AppliedChange> changes_back(const Condemned& condemned) {
  std::vector<AppliedChange> changes;
  for (const Knob knob : knobs_in(condemned)) {
    AppliedChange& change = changes.emplace_back();
    change.policy = "decide";
    change.knob = knob;
    change.promised_ratio = changes.size() == 1 ? 1 / condemned.measured.ratio : 1;
    change.is_for_time = changes.size() == 1;
  }
  return changes;
}

Reason explain_taken_back(const Condemned& condemned, RoundId until) {
  Reason reason =
      reason_of(ReasonCode::taken_back,
                concat(plans_text(condemned), " is taken back in ", knobs_text(condemned), ": ",
                       what_happened(condemned), "; policy ", condemned.changes.front().policy,
                       " may not propose this change for a shorter step before round ", until),
                Outcome::changed);
  const RatioInterval& measured = condemned.measured;
  reason.forecast.step_ratio = 1 / measured.ratio;
  reason.forecast.step_ratio_low = 1 / measured.high;
  reason.forecast.step_ratio_high = 1 / measured.low;
  return reason;
}

Reason explain_stays(const Condemned& condemned, const std::string& why_not) {
  return reason_of(ReasonCode::take_back_stays,
                   concat(plans_text(condemned), " should be taken back in ", knobs_text(condemned),
                          " (", what_happened(condemned), "), but stays: ", why_not),
                   Outcome::vetoed);
}

}  // namespace cox
