// Computes the published figures of a run: timing, memory, convergence, ranks beside each other,
// kernels of a trace, efficiency and pipelines. pytscope 0.2.1 defines them (docs/diagnosis.md).
// All sums are exactly rounded; shares are fractions.
//
//   RunRecord -> figures_of() -> Figures -> published_findings()
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metrics/records/kernel_trace.h"
#include "metrics/records/run_record.h"
#include "metrics/records/stage_interval.h"

namespace cox::diagnosis {

struct PhaseTime {
  std::string name;
  double seconds = 0;  // in a mean step
  double fraction = 0;
};

struct Timing {
  std::size_t steps = 0;
  double mean_seconds = 0;
  double deviation_seconds = 0;
  double p50_seconds = 0;
  double p95_seconds = 0;
  double total_seconds = 0;
  std::vector<PhaseTime> phases;  // in the order of a step; unknown names follow

  double steps_per_second() const { return mean_seconds > 0 ? 1 / mean_seconds : 0; }
  double variation() const { return mean_seconds > 0 ? deviation_seconds / mean_seconds : 0; }
  double tail_ratio() const { return p50_seconds > 0 ? p95_seconds / p50_seconds : 0; }
  const PhaseTime* find(std::string_view name) const;
};

struct MemoryUse {
  bool is_there = false;
  std::size_t steps = 0;
  double peak_alloc_bytes = 0;
  double peak_reserved_bytes = 0;
  double mean_alloc_bytes = 0;
  double fragmentation = 0;
  double growth_bytes_per_step = 0;
};

enum class Trend : std::uint8_t { unknown, improving, plateau, worsening, diverged };
std::string_view to_string(Trend trend);

struct Convergence {
  bool has_loss = false;
  bool has_gradient_norm = false;
  std::size_t steps = 0;
  std::optional<double> final_loss;
  std::optional<double> best_loss;
  Trend trend = Trend::unknown;
  std::optional<std::int64_t> diverged_at;
  std::vector<std::int64_t> loss_spikes;  // step numbers
  std::vector<std::int64_t> gradient_spikes;
};

struct RankFigures {
  std::int32_t rank = 0;
  double mean_compute_seconds = 0;
  double median_compute_seconds = 0;
  std::size_t slowest_count = 0;
  double slowest_fraction = 0;
  double z = 0;
  double slowdown = 0;
};

struct Distributed {
  std::size_t steps = 0;
  double mean_wall_seconds = 0;
  double mean_comm_fraction = 0;
  double variation = 0;
  double skew_seconds = 0;
  double lost_fraction = 0;
  std::vector<RankFigures> ranks;
  std::optional<std::size_t> straggler;  // index in `ranks`
};

struct BudgetLine {
  std::string name;
  double seconds = 0;
  double fraction = 0;
  bool is_recoverable = false;
};

struct Efficiency {
  double wall_seconds = 0;
  std::size_t steps = 0;
  double compute_seconds = 0;
  std::optional<double> ideal_seconds;
  std::optional<double> mfu;
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;
  std::vector<BudgetLine> lines;  // useful first; the seconds sum to the wall time

  double useful_fraction() const { return lines.empty() ? 0 : lines.front().fraction; }
  // Returns the recoverable lines with time, the largest first.
  std::vector<BudgetLine> recoverable() const;
};

// One step in which several quantities spike, or several such steps close together.
struct Instability {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::vector<std::string> axes;  // sorted
  std::optional<double> loss;     // at the step with the largest loss, like the figures below
  std::optional<double> gradient_norm;
  std::optional<double> step_seconds;
  std::optional<double> alloc_bytes;
};

// The bubble is the part of the stages' time in which they are idle. The ideal bubble is the least
// time to fill and drain the pipeline with so many micro-batches; the excess is the rest.
struct Pipeline {
  double makespan_seconds = 0;
  double busy_seconds = 0;
  double bubble = 0;
  std::map<std::int32_t, double> stage_bubbles;
  std::optional<std::size_t> microbatches;
  std::optional<double> ideal_bubble;
  std::int32_t busiest_stage = 0;
  std::int32_t idlest_stage = 0;

  std::optional<double> excess() const;
};

struct Figures {
  Timing timing;
  MemoryUse memory;
  Convergence convergence;
  std::vector<Instability> instabilities;  // the first three
  std::optional<Distributed> distributed;
  std::optional<KernelTrace> trace;
  std::optional<Pipeline> pipeline;
  std::optional<Efficiency> efficiency;
};

struct FigureOptions {
  std::size_t warmup_steps = 0;
  std::optional<double> flops_per_step;  // overrides run.json
  std::optional<double> peak_flops;      // likewise
};

// Returns the values without absent ones.
std::vector<double> present(std::vector<double> values);

// Computes the figures of the lowest rank without warm-up, and those of all ranks with warm-up.
// REQUIRES: the record has a rank.
Figures figures_of(const RunRecord& run, const FigureOptions& options);

Timing timing_of(const RankRecord& rank, std::size_t first);
MemoryUse memory_of(const RankRecord& rank, std::size_t first);
Convergence convergence_of(const RankRecord& rank, std::size_t first);
// Returns nullopt for fewer than two ranks, or if no step is common.
std::optional<Distributed> distributed_of(const RunRecord& run);

// Returns nullopt for fewer than two stages or no time.
std::optional<Pipeline> pipeline_of(const std::vector<StageInterval>& intervals,
                                    std::optional<std::size_t> microbatches);

}  // namespace cox::diagnosis
