#include <algorithm>
#include <cmath>
#include <optional>

#include "metrics/blocks.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/progress.h"

namespace cox::metrics {
namespace {

bool speaks_of_formats(const Reason& reason) {
  return reason.policy == PolicyKind::precision || reason.policy == PolicyKind::loss_scale ||
         reason.code == ReasonCode::override_applied;
}

bool is_change(const Reason& reason) {
  return reason.outcome == Outcome::changed || reason.outcome == Outcome::clamped;
}

void set_ratio(Known& ratio, double part, double whole, RoundId round) {
  if (whole > 0 && std::isfinite(part)) ratio = {part / whole, RankId(-1), round, true};
}

// Uses the rank with the least noisy gradients, as the policy does. A mean over ranks would be
// meaningless, because a rank whose signal is lost in noise reports a bound of 1e6.
void set_noise(Known& noise, const BlockEvidence& seen, RoundId round) {
  const auto least = least_noise_ratio(seen);
  if (least && std::isfinite(*least)) noise = {*least, RankId(-1), round, true};
}

void set_magnitude(Known& known, const Magnitude& seen, RoundId round) {
  if (seen.rank.value() < 0 || !std::isfinite(seen.value)) return;
  known = {static_cast<double>(seen.value), seen.rank, round, true};
}

void add_evidence(BlockNumerics& block, const BlockEvidence& seen, RoundId round) {
  set_noise(block.noise, seen, round);
  set_ratio(block.underflow, seen.underflow, seen.sampled, round);
  set_ratio(block.saturated, seen.saturated, seen.sampled, round);
  set_magnitude(block.activation, seen.activation, round);
  set_magnitude(block.gradient, seen.gradient, round);
}

void add_reason(NumericsView& view, const JobFacts& job, const Reason& reason) {
  const auto shared = std::make_shared<const Reason>(reason);
  const auto note = [&](BlockNumerics& block) {
    block.newest = shared;
    if (is_change(reason) && reason.policy != PolicyKind::loss_scale) block.why = shared;
  };
  if (reason.block >= 0) {
    const auto b = static_cast<std::size_t>(reason.block);
    if (b < view.blocks.size()) note(view.blocks[b]);
    return;
  }
  if (const auto range = blocks_named_in(job, reason.text)) {
    for (std::size_t b = range->first; b <= range->last && b < view.blocks.size(); ++b)
      note(view.blocks[b]);
    return;
  }
  if (!is_change(reason) || reason.policy == PolicyKind::loss_scale) return;
  for (BlockNumerics& block : view.blocks) {
    const bool is_meant =
        block.planned != block.format || reason.code == ReasonCode::precision_start;
    if (is_meant) note(block);
  }
}

void add_overflows(NumericsView& view, const std::vector<Overflow>& round) {
  if (round.empty()) return;
  ++view.overflow_rounds;
  view.overflows = with_overflows(view.overflows, round);
  for (const Overflow& overflow : round) {
    const auto pass = static_cast<std::size_t>(overflow.pass);
    const auto b = static_cast<std::size_t>(std::max(overflow.block, 0));
    if (overflow.block < 0) {
      ++view.outside_rounds[pass];
    } else if (b < view.blocks.size()) {
      ++view.blocks[b].overflow_rounds[pass];
      view.blocks[b].overflowed_round = overflow.round;
    }
  }
}

Overflow blank(const StepRecord& record, float loss_scale) {
  Overflow overflow;
  overflow.round = record.signals.round;
  overflow.step = record.decision.summary.step;
  overflow.time = record.signals.now;
  overflow.loss_scale = loss_scale;
  overflow.was_skipped = record.decision.summary.skipped_ranks > 0;
  return overflow;
}

bool somebody_looked(const std::vector<BlockEvidence>& evidence) {
  return std::any_of(evidence.begin(), evidence.end(), [](const BlockEvidence& block) {
    return block.sampled > 0 || block.activation.rank.value() >= 0;
  });
}

const Reason* outside_reason(const Decision& decision) {
  for (const Reason& reason : decision.reasons) {
    if (reason.code == ReasonCode::overflow_outside) return &reason;
  }
  return nullptr;
}

// Fills in the pass, the rank and the number of values, from the ranks' own reports.
void add_reports(const StepSignals& signals, Overflow& overflow) {
  overflow.pass = Pass::backward;
  for (const RankSignal& report : signals.reports) {
    const bool in_loss = report.has(SignalFlag::nonfinite_loss);
    if (!in_loss && !report.has(SignalFlag::nonfinite_gradient)) continue;
    if (overflow.rank.value() < 0) overflow.rank = report.rank;
    if (in_loss) overflow.pass = Pass::forward;  // all blocks were finite, but the loss was not
    overflow.values += report.nonfinite_values;
  }
}

void put_in_force(const std::vector<Precision>& formats, RoundId round, NumericsView& view) {
  for (std::size_t b = 0; b < std::min(formats.size(), view.blocks.size()); ++b) {
    BlockNumerics& block = view.blocks[b];
    if (block.format == formats[b]) continue;
    ++view.changes[static_cast<std::size_t>(block.format)][static_cast<std::size_t>(formats[b])];
    ++block.changes;
    block.changed_round = round;
    block.format = formats[b];
  }
}

// Counts a plan's formats from the round in which the plan took effect. A plan whose successor is
// published in that same round is never reported as active. Such a plan was in force all the same,
// because only one plan is in flight.
void follow_plan(const StepRecord& record, NumericsView& view) {
  const Plan& plan = record.plan;
  PlanFormats& formats = view.plan;
  const bool is_first = !formats.plan;
  if (formats.plan != plan.id) {
    if (!is_first && !formats.is_in_force)
      put_in_force(formats.planned, record.signals.round, view);
    formats = {plan.id, false, plan.precision};
    for (std::size_t b = 0; b < std::min(plan.precision.size(), view.blocks.size()); ++b) {
      view.blocks[b].planned = plan.precision[b];
      if (is_first) view.blocks[b].format = plan.precision[b];  // the first format is no change
    }
  }
  if (formats.is_in_force || (!plan.activated_round && !is_first)) return;
  put_in_force(formats.planned, plan.activated_round.value_or(record.signals.round), view);
  formats.is_in_force = true;
}

bool is_news(const StepRecord& record, float loss_scale, const NumericsView& before) {
  const PlanFormats& formats = before.plan;
  const bool plan_is_known =
      formats.plan == record.plan.id && (formats.is_in_force || !record.plan.activated_round);
  const auto& reasons = record.decision.reasons;
  return !plan_is_known || !record.signals.evidence.empty() || loss_scale != before.loss_scale ||
         before.blocks.size() != record.job.blocks.size() ||
         std::any_of(reasons.begin(), reasons.end(), [](const Reason& reason) {
           return speaks_of_formats(reason) || reason.code == ReasonCode::overflow_outside;
         });
}

}  // namespace

std::vector<Overflow> overflows_of(const StepRecord& record, float loss_scale) {
  const std::vector<BlockEvidence>& evidence = record.signals.evidence;
  std::vector<Overflow> found;
  const auto add = [&](std::size_t block, Pass pass, std::uint32_t values) {
    if (values == 0) return;
    Overflow overflow = blank(record, loss_scale);
    overflow.block = static_cast<std::int32_t>(block);
    overflow.pass = pass;
    overflow.rank = evidence[block].rank_of_overflow;
    overflow.values = values;
    found.push_back(overflow);
  };
  for (std::size_t b = 0; b < evidence.size(); ++b)
    add(b, Pass::forward, evidence[b].overflow_forward);
  for (std::size_t b = evidence.size(); b-- > 0;)
    add(b, Pass::backward, evidence[b].overflow_backward);
  if (!found.empty()) return found;
  const Reason* reason = outside_reason(record.decision);
  const bool is_outside = record.decision.summary.nonfinite_ranks > 0 && somebody_looked(evidence);
  if (reason == nullptr && !is_outside) return found;
  Overflow overflow = blank(record, loss_scale);
  add_reports(record.signals, overflow);
  if (reason != nullptr && reason->rank.value() >= 0) overflow.rank = reason->rank;
  return {overflow};
}

std::vector<Overflow> with_overflows(const std::vector<Overflow>& kept,
                                     const std::vector<Overflow>& round) {
  std::vector<Overflow> all = kept;
  all.insert(all.end(), round.rbegin(), round.rend());
  if (all.size() > kOverflowsKept)
    all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kOverflowsKept));
  return all;
}

std::shared_ptr<const NumericsView> numerics_after(const StepRecord& record,
                                                   const NumericsView& before) {
  const float loss_scale = loss_scale_of(record.signals, before.loss_scale);
  if (!is_news(record, loss_scale, before)) return nullptr;
  auto view = std::make_shared<NumericsView>(before);
  const RoundId round = record.signals.round;
  view->blocks.resize(record.job.blocks.size());
  view->loss_scale = loss_scale;
  add_overflows(*view, overflows_of(record, loss_scale));
  const auto& evidence = record.signals.evidence;
  for (std::size_t b = 0; b < std::min(evidence.size(), view->blocks.size()); ++b)
    add_evidence(view->blocks[b], evidence[b], round);
  follow_plan(record, *view);
  for (const Reason& reason : record.decision.reasons) {
    if (speaks_of_formats(reason)) add_reason(*view, record.job, reason);
  }
  return view;
}

}  // namespace cox::metrics
