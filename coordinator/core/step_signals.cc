#include "coordinator/core/step_signals.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace cox {
namespace {

bool is_foreign(const RankSignal& signal, std::uint32_t incarnation, std::int32_t world_size) {
  return signal.incarnation != incarnation || signal.rank.value() >= world_size;
}

// A total order of reports, so that the order of arrival cannot matter: of two different reports
// of one rank for one round the one with the smaller bytes is "the first".
bool comes_before(const RankSignal* a, const RankSignal* b) {
  if (a->rank != b->rank) return a->rank < b->rank;
  if (a->round != b->round) return a->round < b->round;
  return std::memcmp(a, b, sizeof *a) < 0;
}

bool faults_in_order(const FaultyReport& a, const FaultyReport& b) {
  return std::tie(a.rank, a.fault, a.round) < std::tie(b.rank, b.fault, b.round);
}

// Keeps the first of each rank in `fresh` (sorted) and notes the others, and who is missing.
void take_one_a_rank(const std::vector<const RankSignal*>& fresh, std::int32_t world_size,
                     StepSignals& into) {
  into.reports.reserve(fresh.size());
  std::int32_t next_rank = 0;
  for (const RankSignal* report : fresh) {
    if (!into.reports.empty() && into.reports.back().rank == report->rank) {
      into.faults.push_back({report->rank, ReportFault::duplicate, report->round});
      continue;
    }
    for (; next_rank < report->rank.value(); ++next_rank) {
      into.faults.push_back({RankId(next_rank), ReportFault::missing, into.round});
    }
    next_rank = report->rank.value() + 1;
    into.reports.push_back(*report);
  }
  for (; next_rank < world_size; ++next_rank) {
    into.faults.push_back({RankId(next_rank), ReportFault::missing, into.round});
  }
}

}  // namespace

std::string_view to_string(ReportFault fault) {
  switch (fault) {
    case ReportFault::unspecified:
      return "unspecified";
    case ReportFault::missing:
      return "missing";
    case ReportFault::duplicate:
      return "duplicate";
    case ReportFault::stale:
      return "stale";
    case ReportFault::damaged:
      return "damaged";
    case ReportFault::foreign:
      return "foreign";
  }
  return "unknown";
}

StepSignals collect(RoundId round, std::uint32_t incarnation, std::int32_t world_size,
                    std::span<const RankSignal> received, std::vector<BlockEvidence> evidence,
                    UnixTime now) {
  StepSignals signals;
  signals.round = round;
  signals.now = now;
  signals.evidence = std::move(evidence);
  std::vector<const RankSignal*> fresh;
  fresh.reserve(received.size());
  for (const RankSignal& signal : received) {
    if (!check(signal).ok()) {
      signals.faults.push_back({RankId(-1), ReportFault::damaged, RoundId{}});
    } else if (is_foreign(signal, incarnation, world_size)) {
      signals.faults.push_back({signal.rank, ReportFault::foreign, signal.round});
    } else if (signal.round < round && !signal.has(SignalFlag::watching)) {
      signals.faults.push_back({signal.rank, ReportFault::stale, signal.round});
    } else {
      fresh.push_back(&signal);
    }
  }
  std::sort(fresh.begin(), fresh.end(), comes_before);
  take_one_a_rank(fresh, world_size, signals);
  std::sort(signals.faults.begin(), signals.faults.end(), faults_in_order);
  return signals;
}

}  // namespace cox
