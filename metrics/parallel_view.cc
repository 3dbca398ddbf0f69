#include "metrics/parallel_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "coordinator/core/summary.h"

namespace cox::metrics {
namespace {

bool worked(const RankSignal& s) {
  return s.rounds > 0 && !s.has(SignalFlag::finished);
}

struct Columns {
  std::vector<RankId> ranks;
  std::vector<double> samples;
  std::vector<RankId> reducing;
  std::vector<double> reduction;
  std::vector<double> exposed;
};

// Times that are no times are left out, as those of phases are.
void add_reduction(const RankSignal& s, Columns& columns) {
  const double reduction = s.reduction_seconds;
  const double exposed = s.reduction_exposed_seconds;
  if (!std::isfinite(reduction + exposed) || reduction < 0 || exposed < 0) return;
  columns.reducing.push_back(s.rank);
  columns.reduction.push_back(reduction / s.rounds);
  columns.exposed.push_back(exposed / s.rounds);
}

Columns columns_of(const StepSignals& signals) {
  Columns columns;
  for (const RankSignal& s : signals.reports) {
    if (!worked(s)) continue;
    columns.ranks.push_back(s.rank);
    columns.samples.push_back(s.samples / static_cast<double>(s.rounds));
    add_reduction(s, columns);
  }
  return columns;
}

std::uint64_t fewest_micro_batches(const std::vector<double>& samples, std::uint64_t micro_batch) {
  double fewest = 0;
  for (const double count : samples) {
    if (count > 0 && (fewest == 0 || count < fewest)) fewest = count;
  }
  if (micro_batch == 0 || fewest == 0) return 0;
  return static_cast<std::uint64_t>(std::ceil(fewest / static_cast<double>(micro_batch)));
}

}  // namespace

ParallelView parallel_view(const JobFacts& job, const StepSignals& signals,
                           const ParallelView& before) {
  const Columns columns = columns_of(signals);
  if (columns.ranks.empty()) return before;
  ParallelView view;
  for (const double count : columns.samples) view.step_samples += count;
  view.micro_batches = fewest_micro_batches(columns.samples, job.micro_batch);
  view.rank_samples = spread_of(columns.samples, columns.ranks);
  view.reduction_seconds = spread_of(columns.reduction, columns.reducing);
  view.exposed_seconds = spread_of(columns.exposed, columns.reducing);
  return view;
}

double hidden_ratio(double reduction_seconds, double exposed_seconds) {
  if (!(reduction_seconds > 0)) return std::numeric_limits<double>::quiet_NaN();
  return std::clamp(1 - exposed_seconds / reduction_seconds, 0.0, 1.0);
}

double hidden_ratio(const ParallelView& view) {
  return hidden_ratio(view.reduction_seconds.median, view.exposed_seconds.median);
}

std::uint64_t planned_samples(const Plan& plan, const JobFacts& job) {
  return plan.step_samples != 0 ? plan.step_samples : job.global_batch;
}

}  // namespace cox::metrics
