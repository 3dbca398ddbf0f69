// The topic Ranks: the ranks that train, the missing ones, and those that delay the others. The
// topic's view is a RanksView with a table of the newest reports. Written on the recording thread.
// Plain values; the functions are pure and linear in the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/rank_row.h"
#include "metrics/topic.h"
#include "metrics/topics/hosts.h"

namespace cox::metrics {

// RankTable is the ranks as of one round. In large jobs the table is refreshed about once a second.
struct RankTable {
  RoundId round{};
  UnixTime time{};                   // of rank 0's decision about the round
  std::vector<RankRow> rows;         // ascending ranks
  std::vector<FaultyReport> faults;  // of that round
  double samples_per_step = 0;       // of all rows
  Spread waiting_seconds;            // of the ranks that measure waiting
  Spread recompute_seconds;
};

struct RanksView {
  std::vector<bool> has_reported;  // since the start; one a rank of the job after the first round
  std::shared_ptr<const RankTable> table = std::make_shared<const RankTable>();  // never null
  SlowFindings slow;
  HostNotes hosts;

  void add(const Round& round);
  std::int32_t ranks_seen() const;
};

// RankCounts counts ranks by state. The states exclude each other, so the counts add up to the
// world size.
struct RankCounts {
  std::int32_t training = 0;
  std::int32_t finished = 0;
  std::int32_t watching = 0;
  std::int32_t missing = 0;
};
// Counts every rank as missing before the first round.
RankCounts rank_counts(const Snapshot& snapshot);

// Returns the spread of a figure over the ranks that worked in the round. Leaves out ranks for
// which `get` returns nothing.
Spread spread_over(const StepSignals& signals, std::optional<double> (*get)(const RankSignal&));

// Returns the own work of the slowest rank over the median; 1 if there is nothing to compare.
double skew_ratio(const StepSummary& summary);

inline constexpr std::string_view kRankPath = "/status/rank";  // the page of one rank

// Returns the values of ranks.html.
Record ranks_section(const Snapshot& snapshot);

// Returns the values of rank.html for one rank; empty if the rank has not reported.
List rank_detail(const Snapshot& snapshot, RankId rank);

// Returns the topic. `put_row` writes a rank as an object with the fields of all topics.
Topic ranks_topic(void (*put_row)(io::JsonWriter& json, const Snapshot& snapshot,
                                  const RankRow& row));

}  // namespace cox::metrics
