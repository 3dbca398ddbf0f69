#include "coordinator/runtime/late_reports.h"

#include <algorithm>

#include "coordinator/core/step_signals.h"

namespace cox::runtime {
namespace {

bool is_late(const RankSignal& report, RoundId round) {
  return report.round < round && !report.has(SignalFlag::watching);
}

}  // namespace

LateReports::LateReports(std::int32_t world_size)
    : next_(static_cast<std::size_t>(std::max(0, world_size))) {}

void LateReports::fold(RoundId round, const JobFacts& job, transport::CollectedSignals& collected) {
  bool has_kept = false;
  bool has_fresh = false;
  const auto counts = [&job](const RankSignal& report) {
    return is_own(report, job.incarnation, job.world_size);
  };
  // What is_own() asks takes time with many ranks: once a report.
  for (const RankSignal& report : collected.signals) {
    if (is_late(report, round) && counts(report)) has_kept = keep(report) || has_kept;
  }
  for (RankSignal& report : collected.signals) {
    if (is_late(report, round) || !counts(report)) continue;
    add_to(report);
    has_fresh = true;
  }
  if (has_fresh) {
    fold_evidence(collected.evidence);
  } else if (has_kept) {
    evidence_.resize(collected.evidence.size());
    merge_into(evidence_, collected.evidence);
  }
}

bool LateReports::keep(const RankSignal& late) {
  RoundId& next = next_[static_cast<std::size_t>(late.rank.value())];
  if (late.round < next) return false;
  next = late.round.next();
  const auto [place, is_first] = kept_.emplace(late.rank.value(), late);
  if (!is_first) place->second = merge_reports(place->second, late);
  return true;
}

void LateReports::add_to(RankSignal& report) {
  next_[static_cast<std::size_t>(report.rank.value())] = report.round.next();
  const auto kept = kept_.find(report.rank.value());
  if (kept == kept_.end()) return;
  report = merge_reports(kept->second, report);
  seal(report);
  kept_.erase(kept);
}

void LateReports::fold_evidence(std::vector<BlockEvidence>& evidence) {
  if (evidence_.empty()) return;
  evidence_.resize(evidence.size());
  merge_into(evidence, evidence_);
  evidence_.clear();
}

}  // namespace cox::runtime
