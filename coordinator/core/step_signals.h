// StepSignals: all reports about one round, sorted into usable ones and faults. Missing, duplicate,
// stale, damaged or foreign reports are recorded as data; only fresh and valid reports reach a
// decision. An input of Decide and therefore journalled whole. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"

namespace cox {

enum class ReportFault : std::uint8_t {
  unspecified = 0,
  missing = 1,    // no report for this round
  duplicate = 2,  // a second fresh report; the one of the older round counts
  stale = 3,      // a report of an earlier round only
  damaged = 4,    // check() in signal.h refuses the report
  foreign = 5,    // another incarnation, or a rank outside the world
};
std::string_view to_string(ReportFault fault);

struct FaultyReport {
  RankId rank{};  // -1 for a damaged report, which names none
  ReportFault fault = ReportFault::unspecified;
  RoundId round{};  // the round that the report named
  friend bool operator==(const FaultyReport&, const FaultyReport&) = default;
};

struct StepSignals {
  RoundId round{};
  UnixTime now{};                       // rank 0's clock when the reports were sorted
  std::vector<RankSignal> reports;      // fresh and valid, ascending ranks, at most one a rank
  std::vector<FaultyReport> faults;     // sorted by rank, then fault
  std::vector<BlockEvidence> evidence;  // merged over ranks; one per block, or empty
};

// Returns whether the signal is undamaged and was sent by a rank of this incarnation.
bool is_own(const RankSignal& signal, std::uint32_t incarnation, std::int32_t world_size);

// Sorts `received` (in any order, from any sender) into the signals of `round`. A report is fresh
// if it covers `round` or a later one. A rank that only watches (SignalFlag::watching) counts
// rounds by itself, so all its reports are fresh. Ranks of the world without a fresh report are
// `missing`. The result does not depend on the order of `received`.
StepSignals collect(RoundId round, std::uint32_t incarnation, std::int32_t world_size,
                    std::span<const RankSignal> received, std::vector<BlockEvidence> evidence,
                    UnixTime now);

}  // namespace cox
