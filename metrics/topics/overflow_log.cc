#include "metrics/topics/overflow_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "coordinator/io/json.h"
#include "metrics/blocks.h"
#include "metrics/format.h"

namespace cox::metrics {
namespace {

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

// Fills in who saw it and how much, from the ranks' own reports.
void add_reports(const StepSignals& signals, Overflow& overflow) {
  overflow.pass = Pass::backward;
  for (const RankSignal& report : signals.reports) {
    const bool in_loss = report.has(SignalFlag::nonfinite_loss);
    if (!in_loss && !report.has(SignalFlag::nonfinite_gradient)) continue;
    if (overflow.rank.value() < 0) overflow.rank = report.rank;
    if (in_loss) overflow.pass = Pass::forward;  // all blocks were fine, and the loss was not
    overflow.values += report.nonfinite_values;
  }
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

std::string overflow_text(const JobFacts& job, const Overflow& overflow) {
  std::string text = fmt::format("step {}, round {}: ", grouped(overflow.step.value()),
                                 grouped(overflow.round.value()));
  text += overflow.block < 0 ? "outside of all blocks"
                             : "block " + block_name(job, static_cast<std::size_t>(overflow.block));
  text += ", " + std::string(to_string(overflow.pass));
  if (overflow.rank.value() >= 0) text += ", rank " + std::to_string(overflow.rank.value());
  text += ": ";
  if (overflow.values > 0)
    text +=
        grouped(overflow.values) + (overflow.values == 1 ? " value" : " values") + " not finite";
  else
    text += "a result that is not finite";
  if (overflow.loss_scale > 0)
    text += " at loss scale " + scale_text(static_cast<double>(overflow.loss_scale));
  return text + (overflow.was_skipped ? "; the step was skipped" : "");
}

std::string scale_text(double scale) {
  const bool is_whole = std::isfinite(scale) && scale == std::floor(scale) && scale < 1e15;
  return is_whole ? fixed(scale, 0) : io::json_number(scale);
}

}  // namespace cox::metrics
