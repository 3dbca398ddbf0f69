#include "metrics/rank_table.h"

#include <algorithm>

namespace cox::metrics {
namespace {

// Where the rank loses most against the others.
Phase worst_phase(const PhaseSeconds& seconds, const StepSummary& summary) {
  Phase worst = Phase::other;
  double loss = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double over = static_cast<double>(seconds[p]) - summary.phases[p].median;
    if (is_own_work(static_cast<Phase>(p)) && over > loss) {
      loss = over;
      worst = static_cast<Phase>(p);
    }
  }
  return worst;
}

RankRow row_of(const RankSignal& report, const StepSummary& summary) {
  RankRow row;
  const auto rounds = static_cast<float>(std::max<std::uint32_t>(report.rounds, 1));
  row.rank = report.rank;
  row.round = report.round;
  row.step = report.step;
  row.flags = report.flags;
  row.rounds = report.rounds;
  row.plan_held = report.plan_held;
  row.plan_applied = report.plan_applied;
  row.loss = report.loss;
  row.gradient_norm = report.gradient_norm;
  row.wall_seconds = report.wall_seconds / static_cast<double>(rounds);
  for (std::size_t p = 0; p < kPhases; ++p) {
    row.phase_seconds[p] = report.phase_seconds[p] / rounds;
    if (is_own_work(static_cast<Phase>(p)))
      row.own_seconds += static_cast<double>(row.phase_seconds[p]);
  }
  row.worst_phase = worst_phase(row.phase_seconds, summary);
  const double median = summary.own_seconds.median;
  row.slowdown_ratio = median > 0 ? row.own_seconds / median : 1;
  row.samples = report.samples;
  row.samples_per_step = report.samples / static_cast<double>(rounds);
  row.reduction_seconds = static_cast<double>(report.reduction_seconds / rounds);
  row.reduction_exposed_seconds = static_cast<double>(report.reduction_exposed_seconds / rounds);
  row.control_errors = report.control_errors;
  row.memory_used_bytes = report.memory_used_bytes;
  row.memory_peak_bytes = report.memory_peak_bytes;
  row.memory_limit_bytes = report.memory_limit_bytes;
  return row;
}

}  // namespace

std::shared_ptr<const RankTable> rank_table(const StepSignals& signals,
                                            const StepSummary& summary) {
  auto table = std::make_shared<RankTable>();
  table->round = signals.round;
  table->time = signals.now;
  table->faults = signals.faults;
  table->rows.reserve(signals.reports.size());
  for (const RankSignal& report : signals.reports) {
    table->rows.push_back(row_of(report, summary));
    table->samples_per_step += table->rows.back().samples_per_step;
  }
  return table;
}

}  // namespace cox::metrics
