// Snapshot: everything that telemetry shows, as of one round. Immutable once published, so every
// page and scrape is consistent in itself. Parts that change seldom (job, plan, decisions, ranks)
// are shared between snapshots. Written by TelemetryState, read by the exposition, the API and the
// status page on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/record.h"
#include "coordinator/core/summary.h"
#include "metrics/block_costs.h"
#include "metrics/histogram.h"
#include "metrics/memory_view.h"
#include "metrics/numerics_view.h"
#include "metrics/parallel_view.h"

namespace cox::metrics {

enum class JobState : std::uint8_t { waiting = 0, training = 1, finished = 2 };

// One round in short, for curves.
struct RoundPoint {
  RoundId round{};
  double loss = 0;  // NaN when no rank had a finite one
  double step_seconds = 0;
  double skew_ratio = 1;       // slowest own work / median
  double rate_per_second = 0;  // tokens, or samples where no tokens are reported
  std::uint64_t plan = 0;      // applied in that round
  float loss_scale = 0;        // 0 = no scaler at work
  bool was_skipped = false;    // the optimizer step was, on some rank
};

// The newest rounds, oldest first; bounded.
class RoundPoints {
 public:
  static constexpr std::size_t kCapacity = 300;
  void add(const RoundPoint& point);
  std::size_t size() const { return size_; }
  // Requires: index < size(). 0 is the oldest.
  const RoundPoint& operator[](std::size_t index) const {
    return points_[(next_ + kCapacity - size_ + index) % kCapacity];
  }

 private:
  std::array<RoundPoint, kCapacity> points_{};
  std::size_t next_ = 0;
  std::size_t size_ = 0;
};

// A reason, with how often the same one was given between the two rounds.
struct DecisionEntry {
  Reason reason;  // the newest wording
  RoundId first_round{};
  RoundId last_round{};
  UnixTime last_time{};
  std::uint64_t count = 1;
  std::uint64_t plan = 0;  // newest published when it was given
};
using DecisionList = std::vector<std::shared_ptr<const DecisionEntry>>;  // oldest first

// One rank in the newest round it reported.
struct RankRow {
  RankId rank{};
  RoundId round{};
  StepId step{};
  std::uint16_t flags = 0;  // SignalFlag bits
  Phase worst_phase = Phase::other;
  std::uint32_t rounds = 0;  // covered by the report
  std::uint64_t plan_held = 0;
  std::uint64_t plan_applied = 0;
  double loss = 0;
  double gradient_norm = 0;
  double wall_seconds = 0;  // per covered round, as the two below
  double own_seconds = 0;
  PhaseSeconds phase_seconds{};
  double slowdown_ratio = 1;
  std::uint32_t samples = 0;
  double samples_per_step = 0;
  double reduction_seconds = 0;  // per covered round, as the next one
  double reduction_exposed_seconds = 0;
  std::uint32_t control_errors = 0;
  std::uint64_t memory_used_bytes = 0;
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t memory_limit_bytes = 0;
};

// As of one round; in large jobs refreshed about once a second.
struct RankTable {
  RoundId round{};
  UnixTime time{};
  std::vector<RankRow> rows;         // ascending ranks
  std::vector<FaultyReport> faults;  // of that round
  double samples_per_step = 0;       // of all rows
};

struct CodeCount {
  ReasonCode code = ReasonCode::unspecified;
  std::uint64_t count = 0;
};

inline constexpr std::size_t kPolicyKinds = static_cast<std::size_t>(PolicyKind::accumulation) + 1;
inline constexpr std::size_t kOutcomes = static_cast<std::size_t>(Outcome::reported) + 1;

struct Totals {
  ControlCounters control{};
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t nonfinite_loss_rounds = 0;
  std::uint64_t nonfinite_gradient_rounds = 0;
  std::uint64_t skipped_rounds = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t repeated_rounds = 0;
  std::uint64_t nonfinite_observations = 0;
  std::array<std::array<std::uint64_t, kOutcomes>, kPolicyKinds> decisions{};
  std::vector<CodeCount> codes;  // ascending codes
  BucketCounts step_seconds;
  BucketCounts decide_seconds;
};

struct PlanTimes {
  UnixTime last_published{};
  RoundId published_round{};         // of the newest plan
  std::uint64_t activated_plan = 0;  // newest one known to be active
  std::uint64_t activation_lag_rounds = 0;
};

struct Snapshot {
  JobState state = JobState::waiting;
  UnixTime started{};
  UnixTime last_round_time{};
  std::uint64_t records = 0;  // rounds recorded since the start
  double first_loss = 0;      // the first finite one; NaN before
  std::int32_t ranks_seen = 0;
  std::vector<RankId> ranks_unseen;  // the first few that never reported
  StepSummary summary;
  ParallelView parallel;
  RoundPoints points;
  Totals totals;
  PlanTimes plan_times;
  std::shared_ptr<const JobFacts> job;            // never null
  std::shared_ptr<const Plan> plan;               // never null
  std::shared_ptr<const DecisionList> decisions;  // never null
  std::shared_ptr<const BlockCosts> costs;        // null before the first profile
  std::shared_ptr<const RankTable> ranks;         // never null
  std::shared_ptr<const MemoryView> memory;       // null where memory is not planned
  HeldBytes held;
  MemoryHeadroom headroom;                       // of the newest round
  std::shared_ptr<const NumericsView> numerics;  // never null
};

// Slowest own work over the median; 1 where there is nothing to compare.
double skew_ratio(const StepSummary& summary);

}  // namespace cox::metrics
