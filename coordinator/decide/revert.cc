#include "coordinator/decide/revert.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/share_units.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/plan_change.h"

namespace cox {
namespace {

// Each knob once, in the order of their numbers.
std::vector<Knob> knobs_in(const Condemned& condemned) {
  std::vector<Knob> knobs;
  for (const AppliedChange& change : condemned.changes) knobs.push_back(change.knob);
  std::ranges::sort(knobs);
  const auto rest = std::ranges::unique(knobs);
  knobs.erase(rest.begin(), rest.end());
  return knobs;
}

std::string knobs_text(const Condemned& condemned) {
  std::string text;
  for (const Knob knob : knobs_in(condemned)) text += concat(text.empty() ? "" : ", ", knob);
  return text;
}

// The blocks of a change, within the job.
struct Blocks {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Blocks blocks_of(const AppliedChange& change, std::size_t blocks) {
  return {std::min<std::size_t>(change.first_block, blocks),
          std::min<std::size_t>(std::size_t{change.first_block} + change.blocks, blocks)};
}

bool is_still_so(const AppliedChange& change, const Condemned& condemned, const Plan& newest) {
  const KnobValues& after = condemned.after;
  switch (change.knob) {
    case Knob::precision: {
      const std::size_t blocks = newest.precision.size();
      if (after.precision.size() != blocks || condemned.before.precision.size() != blocks) {
        return false;
      }
      const Blocks range = blocks_of(change, blocks);
      for (std::size_t b = range.begin; b < range.end; ++b) {
        if (newest.precision[b] != after.precision[b]) return false;
      }
      return true;
    }
    case Knob::actions:
      return newest.profiles == after.profiles && newest.rank_profile == after.rank_profile;
    case Knob::shares:
      return newest.shares == after.shares;
    case Knob::batch:
      return newest.step_samples == after.step_samples;
    case Knob::other:
      break;
  }
  return false;
}

void add_precision(const AppliedChange& change, const Condemned& condemned,
                   std::vector<PlanChange>& changes) {
  const std::vector<Precision>& before = condemned.before.precision;
  const Blocks range = blocks_of(change, before.size());
  for (std::size_t b = range.begin; b < range.end; ++b) {
    changes.push_back(SetPrecision{BlockId(static_cast<BlockId::rep>(b)), before[b]});
  }
}

std::vector<PlanChange> restore(const Condemned& condemned) {
  std::vector<PlanChange> changes;
  const KnobValues& before = condemned.before;
  for (const Knob knob : knobs_in(condemned)) {
    if (knob == Knob::actions) changes.push_back(SetActions{before.profiles, before.rank_profile});
    if (knob == Knob::shares) changes.push_back(SetShares{before.shares});
    if (knob == Knob::batch) changes.push_back(SetBatch{before.step_samples});
  }
  for (const AppliedChange& change : condemned.changes) {
    if (change.knob == Knob::precision) add_precision(change, condemned, changes);
  }
  return changes;
}

// The first rank that would get more samples than it may have; -1 = none.
RankId first_over(const Condemned& condemned, const Plan& newest, const JobFacts& job,
                  std::span<const std::uint64_t> most_samples) {
  Plan plan = newest;
  for (const Knob knob : knobs_in(condemned)) {
    if (knob == Knob::shares) plan.shares = condemned.before.shares;
    if (knob == Knob::batch) plan.step_samples = condemned.before.step_samples;
  }
  const bool moves = plan.shares != newest.shares || plan.step_samples != newest.step_samples;
  if (!moves || most_samples.size() != job.ranks()) return RankId(-1);
  if (!validate(plan, job).ok()) return RankId(-1);  // Decide refuses it
  const std::vector<std::uint64_t> samples = samples_of_ranks(job, plan);
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
  return concat(
      sentence("a step was to take %.1f %% less, and takes ", 100 * (1 - promise_of(condemned))),
      change_text(measured.ratio), " (95 %: ", change_text(measured.low), " to ",
      change_text(measured.high), ")");
}

std::string plans_text(const Condemned& condemned) {
  if (condemned.first_plan == condemned.plan) return concat("plan ", condemned.plan);
  return concat("plans ", condemned.first_plan, " to ", condemned.plan);
}

}  // namespace

Inverse inverse_of(const Condemned& condemned, const Plan& newest, const JobFacts& job,
                   std::span<const std::uint64_t> most_samples) {
  for (const AppliedChange& change : condemned.changes) {
    if (!is_still_so(change, condemned, newest)) {
      return {{}, concat("a later plan has changed ", change.knob, " since")};
    }
  }
  const RankId over = first_over(condemned, newest, job, most_samples);
  if (over.value() >= 0) {
    return {{}, concat("rank ", over, " would get more samples than fit its memory")};
  }
  return {restore(condemned), {}};
}

std::string carry_out(const Inverse& inverse, const JobFacts& job, const OverrideConfig& force,
                      Plan& plan) {
  if (inverse.changes.empty()) return inverse.why_not;
  Plan candidate = plan;
  for (const PlanChange& change : inverse.changes) {
    if (is_forced(change, force)) return "the user forces it";
    const ChangeResult result = apply_change(candidate, change, job);
    if (result.outcome == Outcome::vetoed) return result.note;
  }
  if (same_effect(candidate, plan)) return "the plan is as it was before already";
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
                       " may not promise a shorter step by that again before round ", until),
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
