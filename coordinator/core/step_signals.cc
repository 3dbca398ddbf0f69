#include "coordinator/core/step_signals.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

namespace cox {
namespace {

bool is_foreign(const RankSignal& signal, std::uint32_t incarnation, std::int32_t world_size) {
  return signal.incarnation != incarnation || signal.rank.value() >= world_size;
}

// Decides which of two reports of one rank counts, by their contents: the older round, then the
// smaller bytes. The order of arrival does not matter.
bool comes_before(const RankSignal& a, const RankSignal& b) {
  if (a.round != b.round) return a.round < b.round;
  return std::memcmp(&a, &b, sizeof a) < 0;
}

bool faults_in_order(const FaultyReport& a, const FaultyReport& b) {
  return std::tie(a.rank, a.fault, a.round) < std::tie(b.rank, b.fault, b.round);
}

}  // namespace

std::string_view to_string(ReportFault fault) {
  constexpr std::array<std::string_view, 6> kNames = {"unspecified", "missing", "duplicate",
                                                      "stale",       "damaged", "foreign"};
  const auto place = static_cast<std::size_t>(fault);
  return place < kNames.size() ? kNames[place] : "unknown";
}

bool is_own(const RankSignal& signal, std::uint32_t incarnation, std::int32_t world_size) {
  return check(signal).ok() && !is_foreign(signal, incarnation, world_size);
}

StepSignals collect(RoundId round, std::uint32_t incarnation, std::int32_t world_size,
                    std::span<const RankSignal> received, std::vector<BlockEvidence> evidence,
                    UnixTime now) {
  StepSignals signals{round, now, {}, {}, std::move(evidence)};
  const auto add_fault = [&](RankId rank, ReportFault fault, RoundId of) {
    signals.faults.push_back({rank, fault, of});
  };
  const auto ranks = static_cast<std::size_t>(std::max(world_size, 0));
  std::vector<const RankSignal*> counting(ranks, nullptr);  // per rank: the report that counts
  for (const RankSignal& signal : received) {
    if (!check(signal).ok()) {
      add_fault(RankId(-1), ReportFault::damaged, RoundId{});
    } else if (is_foreign(signal, incarnation, world_size)) {
      add_fault(signal.rank, ReportFault::foreign, signal.round);
    } else if (signal.round < round && !signal.has(SignalFlag::watching)) {
      add_fault(signal.rank, ReportFault::stale, signal.round);
    } else {
      const RankSignal*& first = counting[static_cast<std::size_t>(signal.rank.value())];
      const RankSignal* other = &signal;
      if (first == nullptr || comes_before(signal, *first)) std::swap(first, other);
      if (other != nullptr) add_fault(other->rank, ReportFault::duplicate, other->round);
    }
  }
  signals.reports.reserve(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (counting[r] != nullptr) {
      signals.reports.push_back(*counting[r]);
    } else {
      add_fault(rank_id(r), ReportFault::missing, round);
    }
  }
  std::ranges::sort(signals.faults, faults_in_order);
  return signals;
}

}  // namespace cox
