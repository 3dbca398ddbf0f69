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

// Of two reports of one rank, which counts; by their contents, so that the order of arrival cannot
// matter: the older round, then the smaller bytes.
bool comes_before(const RankSignal& a, const RankSignal& b) {
  if (a.round != b.round) return a.round < b.round;
  return std::memcmp(&a, &b, sizeof a) < 0;
}

bool faults_in_order(const FaultyReport& a, const FaultyReport& b) {
  return std::tie(a.rank, a.fault, a.round) < std::tie(b.rank, b.fault, b.round);
}

// The reports that count, each in the place of its rank.
class Places {
 public:
  explicit Places(std::int32_t world_size)
      : first_(static_cast<std::size_t>(std::max(world_size, 0)), nullptr) {}

  void take(const RankSignal& report, std::vector<FaultyReport>& faults) {
    const RankSignal*& first = first_[static_cast<std::size_t>(report.rank.value())];
    const RankSignal* other = &report;
    if (first == nullptr || comes_before(report, *first)) std::swap(first, other);
    if (other != nullptr) faults.push_back({other->rank, ReportFault::duplicate, other->round});
  }

  void finish(StepSignals& into) const {
    into.reports.reserve(first_.size());
    for (std::size_t r = 0; r < first_.size(); ++r) {
      if (first_[r] != nullptr) {
        into.reports.push_back(*first_[r]);
      } else {
        const RankId rank(static_cast<std::int32_t>(r));
        into.faults.push_back({rank, ReportFault::missing, into.round});
      }
    }
  }

 private:
  std::vector<const RankSignal*> first_;
};

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
  StepSignals signals;
  signals.round = round;
  signals.now = now;
  signals.evidence = std::move(evidence);
  Places places(world_size);
  for (const RankSignal& signal : received) {
    if (!check(signal).ok()) {
      signals.faults.push_back({RankId(-1), ReportFault::damaged, RoundId{}});
    } else if (is_foreign(signal, incarnation, world_size)) {
      signals.faults.push_back({signal.rank, ReportFault::foreign, signal.round});
    } else if (signal.round < round && !signal.has(SignalFlag::watching)) {
      signals.faults.push_back({signal.rank, ReportFault::stale, signal.round});
    } else {
      places.take(signal, signals.faults);
    }
  }
  places.finish(signals);
  std::sort(signals.faults.begin(), signals.faults.end(), faults_in_order);
  return signals;
}

}  // namespace cox
