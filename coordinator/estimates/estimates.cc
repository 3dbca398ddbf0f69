#include "coordinator/estimates/estimates.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/share_units.h"
#include "coordinator/core/summary.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

bool has_use_for_speeds(const JobFacts& job, const Config& config, const Plan& plan) {
  const bool is_asked = job.capabilities.shares || config.shares.mode != PolicyMode::off;
  return is_asked && job.world_size > 1 && samples_of_step(job, plan) > 0;
}

Estimates fitted(Estimates estimates, std::size_t ranks) {
  const std::size_t speeds = estimates.speeds.ranks.size();
  if (!fits(estimates.slowness, ranks)) estimates.slowness = fresh_slowness(ranks);
  if (speeds != 0 && speeds != ranks) estimates.speeds = {};
  return estimates;
}

}  // namespace

bool Estimates::is_sane() const {
  return fits(slowness, slowness.reports.size()) && slowness.is_sane() && speeds.is_sane();
}

Estimates estimate(Estimates before, const JobFacts& job, const Config& config, const Plan& plan,
                   const StepSignals& signals, const StepSummary& summary, Timings timings) {
  const std::size_t ranks = job.ranks();
  Estimates now = fitted(std::move(before), ranks);
  const std::vector<RankSignal>& reports = signals.reports;
  if (reports.empty() || reports.back().rank.value() >= job.world_size) return now;
  if (has_use_for_speeds(job, config, plan)) {
    if (now.speeds.ranks.empty()) now.speeds = fresh_speeds(ranks);
    now.speeds = learn_speeds(std::move(now.speeds), reports, timings, plan,
                              config.shares.smallest_gain_ratio);
  }
  now.slowness =
      learn_slowness(std::move(now.slowness), signals, std::move(timings), summary,
                     {now.speeds.fixed_samples, job.capabilities.shares}, config.stragglers);
  return now;
}

Estimates after_restart(Estimates restored, const JobFacts& job) {
  Estimates estimates = fitted(std::move(restored), job.ranks());
  estimates.slowness = after_restart(std::move(estimates.slowness));
  estimates.speeds = after_restart(std::move(estimates.speeds));
  return estimates;
}

const SlowRank* find_slow(const Estimates& estimates, RankId rank) {
  const std::vector<SlowRank>& slow = estimates.slowness.slow;
  const auto found = std::ranges::lower_bound(slow, rank, {}, &SlowRank::rank);
  return found != slow.end() && found->rank == rank ? &*found : nullptr;
}

double slowdown_ratio(const Estimates& estimates, RankId rank) {
  const std::vector<double>& level = estimates.slowness.channels[0].level;
  const auto place = static_cast<std::size_t>(rank.value());
  return place < level.size() ? bounded_exp(level[place]) : 1;
}

}  // namespace cox
