#include "coordinator/policies/shares_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "coordinator/core/selection.h"
#include "coordinator/policies/shares_fixed.h"
#include "coordinator/policies/shares_levels.h"

namespace cox {
namespace {

constexpr double kScaleRounds = 8;
constexpr double kPeakRatio = 0.95;  // of its memory limit that a rank may fill
constexpr std::array kSampleWork = {Phase::data, Phase::forward, Phase::backward, Phase::compute};

double seconds_in(const RankSignal& report, Phase phase) {
  return report.phase_seconds[static_cast<std::size_t>(phase)];
}

// One report that counts.
struct Seen {
  std::size_t rank = 0;
  double samples = 0;     // of a step
  double per_sample = 0;  // seconds
  double fixed = 0;       // seconds of a step
  double communication = 0;
  const RankSignal* report = nullptr;
};

// A sum of non-negative finite numbers is finite, and any other number spoils it.
bool has_sane_times(const RankSignal& report) {
  double sum = 0;
  double smallest = 0;
  for (const float seconds : report.phase_seconds) {
    sum += seconds;
    smallest = std::min<double>(smallest, seconds);
  }
  return std::isfinite(sum) && smallest >= 0;
}

bool is_complete(const RankSignal& report, std::size_t ranks, double shares_plan) {
  const bool works = !report.has(SignalFlag::finished) && !report.has(SignalFlag::watching);
  return works && report.rounds > 0 && report.samples > 0 &&
         static_cast<std::size_t>(report.rank.value()) < ranks &&
         static_cast<double>(report.plan_applied) >= shares_plan && has_sane_times(report);
}

Seen seen_in(const RankSignal& report, double fixed_samples) {
  Seen seen;
  seen.rank = static_cast<std::size_t>(report.rank.value());
  seen.report = &report;
  for (const Phase phase : kSampleWork) seen.per_sample += seconds_in(report, phase);
  seen.samples = static_cast<double>(report.samples) / report.rounds;
  seen.per_sample /= report.rounds * (seen.samples + fixed_samples);
  seen.fixed = seconds_in(report, Phase::optimizer) / report.rounds;
  seen.communication = seconds_in(report, Phase::communication) / report.rounds;
  return seen;
}

std::vector<Seen> reports_that_count(const PolicyInput& input, SharesNotes& notes) {
  std::vector<Seen> counted;
  counted.reserve(input.signals.reports.size());
  const auto skip = notes.skip();
  for (const RankSignal& report : input.signals.reports) {
    if (!is_complete(report, notes.ranks(), notes.shares_plan())) continue;
    const Seen seen = seen_in(report, notes.fixed_samples());
    if (!(seen.per_sample > 1e-15)) continue;
    if (skip[seen.rank] > 0) {
      skip[seen.rank] -= 1;
    } else {
      counted.push_back(seen);
    }
  }
  return counted;
}

// New shares start a new count of rounds; a new start of the job counts plans from 0 again.
void note_shares(const Plan& plan, SharesNotes& notes) {
  const auto number = static_cast<double>(plan.id.number);
  notes.shares_plan() = std::min(notes.shares_plan(), number);
  bool same = true;
  for (std::size_t r = 0; r < notes.ranks(); ++r) {
    const double share = plan.shares.empty() ? 0.0 : plan.shares[r];
    same = same && notes.share()[r] == share;
    notes.share()[r] = share;
  }
  if (same) return;
  remember_work(notes);
  notes.shares_plan() = number;
  notes.settled_rounds() = notes.worth_rounds() = notes.has_news() = 0;
  std::ranges::fill(notes.skip(), 1.0);
}

// By how much this round is slower for everybody than the levels say.
double common_factor(const std::vector<Seen>& counted, SharesNotes& notes) {
  std::vector<double> ratios;
  ratios.reserve(counted.size());
  for (const Seen& seen : counted) {
    if (notes.count()[seen.rank] == 0) continue;
    ratios.push_back(seen.per_sample / notes.level()[seen.rank]);
  }
  return ratios.empty() ? notes.scale() : std::clamp(median_of(ratios), 1e-6, 1e6);
}

// Memory is at worst in proportion to samples, so a part of the limit that is left lets the samples
// grow by that ratio at least. What already ran within the limit fits.
void learn_cap(const RankSignal& report, double& cap) {
  if (report.memory_limit_bytes == 0 || report.memory_peak_bytes == 0) return;
  const auto limit = static_cast<double>(report.memory_limit_bytes);
  const auto peak = static_cast<double>(report.memory_peak_bytes);
  const double now = std::floor(static_cast<double>(report.samples) / report.rounds);
  const double safe = std::clamp(std::floor(now * kPeakRatio * limit / peak), 1.0, 1e12);
  if (peak > kPeakRatio * limit && now <= cap) {
    cap = peak > limit ? safe : std::max(now, 1.0);
  } else {
    cap = std::max({cap, safe, peak > limit ? 1.0 : now});
  }
}

// Moves a mean that has to follow a change of speed within the reports that show it.
void follow(double& mean, double reports, double seen) {
  mean += (seen - mean) / std::min(reports, 2.0);
}

}  // namespace

void learn_speeds(const PolicyInput& input, SharesNotes& notes) {
  note_shares(input.plan, notes);
  const std::vector<Seen> counted = reports_that_count(input, notes);
  if (counted.empty()) return;
  const double common = common_factor(counted, notes);
  std::vector<RankTime> times;
  times.reserve(counted.size());
  double together = counted.front().communication;
  for (const Seen& seen : counted) {
    times.push_back({seen.rank, seen.per_sample / common});
    together = std::min(together, seen.communication);
    notes.samples()[seen.rank] = seen.samples;
    if (input.job.micro_batch == 0) learn_cap(*seen.report, notes.cap()[seen.rank]);
  }
  learn_levels(notes, times, input.config.shares.smallest_gain_ratio);
  for (const Seen& seen : counted) {
    follow(notes.fixed()[seen.rank], notes.seen()[seen.rank], seen.fixed / common);
  }
  notes.settled_rounds() += 1;
  const double rounds = std::min(notes.settled_rounds(), kScaleRounds);
  notes.scale() += (common - notes.scale()) / rounds;
  notes.shared_seconds() += (together - notes.shared_seconds()) / rounds;
  if (notes.settled_rounds() == kFixedRounds) {
    learn_fixed_samples(notes, input.config.shares.smallest_gain_ratio);
  }
}

}  // namespace cox
