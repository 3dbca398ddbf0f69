// The topic Ranks: who trains, who is missing, and which ranks hold the others up. Its part of the
// snapshot is a RanksView with a table of the newest reports. Written on the recording thread;
// plain values; the rest is pure and linear in the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/decide/record.h"
#include "metrics/topics/hosts.h"

namespace cox::metrics {

struct Snapshot;
struct Topic;

// RankRow is one rank in the newest round that it reported.
struct RankRow {
  RankSignal report;
  // Per covered round.
  double wall_seconds = 0;
  double own_seconds = 0;
  PhaseSeconds phase_seconds{};
  double samples_per_step = 0;
  double reduction_seconds = 0;
  double reduction_exposed_seconds = 0;
  double waiting_seconds = 0;    // for the last rank, a part of communication
  double recompute_seconds = 0;  // what memory actions cost, a part of backward

  double slowdown_ratio = 1;
  Phase worst_phase = Phase::other;
};

// RankTable is the ranks as of one round; in large jobs it is refreshed about once a second.
struct RankTable {
  RoundId round{};
  UnixTime time{};                   // when rank 0 judged that round
  std::vector<RankRow> rows;         // ascending ranks
  std::vector<FaultyReport> faults;  // of that round
  double samples_per_step = 0;       // of all rows
  Spread waiting_seconds;            // of the ranks that measure it
  Spread recompute_seconds;
};

struct RanksView {
  std::vector<bool> has_reported;  // since the start; one a rank of the job
  std::shared_ptr<const RankTable> table = std::make_shared<const RankTable>();  // never null
  SlowFindings slow;
  HostNotes hosts;

  // Notes who has reported in this round.
  void mark_seen(const StepRecord& record);
  std::int32_t ranks_seen() const;
};

// Returns whether the table is to be made anew in the round of `record`.
bool is_due(const RankTable& table, const StepRecord& record);

// Makes the table from the reports of one round.
std::shared_ptr<const RankTable> rank_table(const StepSignals& signals, const StepSummary& summary);

// RankCounts counts ranks by state. The states exclude each other, so the counts add up to the
// world size.
struct RankCounts {
  std::int32_t training = 0;
  std::int32_t finished = 0;
  std::int32_t watching = 0;
  std::int32_t missing = 0;
};
// Before the first round every rank is missing.
RankCounts rank_counts(const Snapshot& snapshot);

// Returns the section of the status page.
std::string ranks_section(const Snapshot& snapshot);

// Returns what is known of one rank, for a page of its own, and the form that asks for one.
std::string rank_detail(const Snapshot& snapshot, RankId rank);
std::string rank_form(const Snapshot& snapshot);

Topic ranks_topic();

}  // namespace cox::metrics
