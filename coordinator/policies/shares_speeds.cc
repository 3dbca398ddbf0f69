#include "coordinator/policies/shares_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "coordinator/core/portable_math.h"
#include "coordinator/core/selection.h"
#include "coordinator/policies/cusum.h"

namespace cox {
namespace {

constexpr double kLevelRounds = 64;  // behind a level at most
constexpr double kNoiseRounds = 64;  // behind a variance
constexpr double kCut = 9;           // squares count as those of 3 deviations at most
constexpr double kNoisy = 2;         // a rank with that many times the variance has its own
constexpr double kSmallestVariance = 1e-8;
constexpr double kFalseAlarms = 1e-8;  // per rank, report and direction
constexpr double kPeakRatio = 0.95;    // of its memory limit that a rank may fill
constexpr std::array kSampleWork = {Phase::data, Phase::forward, Phase::backward, Phase::compute};

double seconds_in(const RankSignal& report, Phase phase) {
  return report.phase_seconds[static_cast<std::size_t>(phase)];
}

double log_ratio(double ratio) {
  return portable_log(std::clamp(ratio, 1e-3, 1e3));
}

// One report that counts.
struct Seen {
  std::size_t rank = 0;
  double per_sample = 0;  // seconds
  double fixed = 0;       // seconds of a step
  double communication = 0;
  const RankSignal* report = nullptr;
};

bool is_complete(const RankSignal& report, std::size_t ranks, double shares_plan) {
  const bool works = !report.has(SignalFlag::finished) && !report.has(SignalFlag::watching);
  bool is_sane = true;
  for (const float seconds : report.phase_seconds) {
    is_sane = is_sane && std::isfinite(seconds) && seconds >= 0;
  }
  return works && is_sane && report.rounds > 0 && report.samples > 0 &&
         static_cast<std::size_t>(report.rank.value()) < ranks &&
         static_cast<double>(report.plan_applied) >= shares_plan;
}

std::vector<Seen> reports_that_count(const PolicyInput& input, SharesNotes& notes) {
  std::vector<Seen> counted;
  for (const RankSignal& report : input.signals.reports) {
    if (!is_complete(report, notes.ranks(), notes.shares_plan())) continue;
    Seen seen;
    seen.rank = static_cast<std::size_t>(report.rank.value());
    seen.report = &report;
    for (const Phase phase : kSampleWork) seen.per_sample += seconds_in(report, phase);
    seen.per_sample /= report.samples;
    seen.fixed = seconds_in(report, Phase::optimizer) / report.rounds;
    seen.communication = seconds_in(report, Phase::communication) / report.rounds;
    if (!(seen.per_sample > 1e-15)) continue;
    double& skip = notes.skip()[seen.rank];
    if (skip > 0) {
      skip -= 1;
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
  notes.shares_plan() = number;
  notes.settled_rounds() = notes.worth_rounds() = notes.has_news() = 0;
  std::ranges::fill(notes.skip(), 1.0);
}

// By how much this round is slower for everybody than the levels say.
double common_factor(const std::vector<Seen>& counted, SharesNotes& notes) {
  std::vector<double> ratios;
  for (const Seen& seen : counted) {
    if (notes.count()[seen.rank] == 0) continue;
    ratios.push_back(seen.per_sample / notes.level()[seen.rank]);
  }
  return ratios.empty() ? notes.scale() : std::clamp(median_of(ratios), 1e-6, 1e6);
}

// Mean of the newest `count` times without the smallest and the largest. Requires: 1 <= count <=
// kRecent, that many seen.
double trimmed_mean(SharesNotes& notes, std::size_t rank, std::size_t count) {
  std::array<double, SharesNotes::kRecent> newest{};
  const auto seen = static_cast<std::size_t>(notes.seen()[rank]);
  for (std::size_t i = 0; i < count; ++i) {
    newest[i] = notes.recent(rank)[(seen + SharesNotes::kRecent - 1 - i) % SharesNotes::kRecent];
  }
  const auto end = newest.begin() + static_cast<std::ptrdiff_t>(count);
  std::sort(newest.begin(), end);
  const std::size_t cut = count > 2 ? 1 : 0;
  double sum = 0;
  for (std::size_t i = cut; i < count - cut; ++i) sum += newest[i];
  return sum / static_cast<double>(count - 2 * cut);
}

// Learns a round's noise from how far each time is from the one before.
class Noise {
 public:
  explicit Noise(SharesNotes& notes) : notes_(notes) {}

  void see(std::size_t rank, double time) {
    const double seen = notes_.seen()[rank];
    if (seen < 1) return;
    const auto newest = static_cast<std::size_t>(seen) + SharesNotes::kRecent - 1;
    const double step = log_ratio(time / notes_.recent(rank)[newest % SharesNotes::kRecent]);
    squares_.push_back(step * step / 2);
    ranks_.push_back(rank);
  }

  void learn() {
    if (squares_.empty()) return;
    double& pooled = notes_.pooled_variance();
    double& samples = notes_.pooled_samples();
    if (samples == 0) pooled = 1.4826 * 1.4826 * median_of(squares_);
    pooled = std::max(pooled, kSmallestVariance);
    double total = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      total += std::min(squares_[i], kCut * pooled);
      double& own = notes_.variance()[ranks_[i]];
      if (own == 0) own = pooled;
      const double weight = std::max(1 / notes_.seen()[ranks_[i]], 1 / kNoiseRounds);
      own += weight * (std::min(squares_[i], kCut * std::max(own, pooled)) - own);
    }
    const auto count = static_cast<double>(ranks_.size());
    samples = std::min(samples + count, kNoiseRounds * count);
    pooled += std::max(count / samples, 1 / kNoiseRounds) * (total / count - pooled);
    pooled = std::max(pooled, kSmallestVariance);
  }

 private:
  SharesNotes& notes_;
  std::vector<std::size_t> ranks_;
  std::vector<double> squares_;
};

double pooled_deviation(SharesNotes& notes) {
  const double samples = std::max(notes.pooled_samples(), 1.0);
  return std::sqrt(notes.pooled_variance() * (1 + 2 * std::sqrt(2 / samples)));
}

double deviation_of(SharesNotes& notes, std::size_t rank) {
  const double pooled = pooled_deviation(notes);
  const double own = notes.variance()[rank];
  return own > kNoisy * pooled * pooled ? std::sqrt(own) : pooled;
}

// One step of a CUSUM; true when it alarms.
bool alarms(const CusumTest& test, double score, double& sum, double& since) {
  sum = cusum_step(sum, score, test.k);
  since = sum > 0 ? since + 1 : 0;
  return sum >= test.h;
}

class Levels {
 public:
  Levels(SharesNotes& notes, double smallest_gain)
      : notes_(notes),
        shift_(2 * portable_log(1 + smallest_gain)),
        deviation_(pooled_deviation(notes)),
        test_(make_cusum_test(shift_, deviation_, kFalseAlarms)) {}

  void see(std::size_t rank, double time) {
    double& level = notes_.level()[rank];
    double& count = notes_.count()[rank];
    double& seen = notes_.seen()[rank];
    const double score = count > 0 ? log_ratio(time / level) / std::sqrt(1 + 1 / count) : 0;
    notes_.recent(rank)[static_cast<std::size_t>(seen) % SharesNotes::kRecent] = time;
    seen += 1;
    if (count >= 2 && has_changed(rank, score)) return;
    count = std::min({count + 1, seen, kLevelRounds});  // of a restored level nothing is recent
    if (count <= static_cast<double>(SharesNotes::kRecent)) {
      level = trimmed_mean(notes_, rank, static_cast<std::size_t>(count));
    } else {
      const double most = kMaxScore * deviation_of(notes_, rank);
      level *= 1 + std::clamp(score, -most, most) / count;
    }
  }

 private:
  bool has_changed(std::size_t rank, double score) {
    const double own = deviation_of(notes_, rank);
    const CusumTest test = own > deviation_ ? make_cusum_test(shift_, own, kFalseAlarms) : test_;
    const double z = score / test.sigma;
    const bool slower = alarms(test, z, notes_.up()[rank], notes_.up_since()[rank]);
    const bool faster = alarms(test, -z, notes_.down()[rank], notes_.down_since()[rank]);
    if (!slower && !faster) return false;
    jump(rank, slower ? notes_.up_since()[rank] : notes_.down_since()[rank]);
    return true;
  }

  // The first reports of a change that took long to show may be from before it.
  void jump(std::size_t rank, double since) {
    const double seen = std::min(notes_.seen()[rank], static_cast<double>(SharesNotes::kRecent));
    const double newest = std::min(std::max(4.0, since - 2), seen);
    notes_.count()[rank] = newest;
    notes_.level()[rank] = trimmed_mean(notes_, rank, static_cast<std::size_t>(newest));
    notes_.up()[rank] = notes_.up_since()[rank] = 0;
    notes_.down()[rank] = notes_.down_since()[rank] = 0;
    notes_.has_news() = 1;
  }

  SharesNotes& notes_;
  const double shift_;
  const double deviation_;
  const CusumTest test_;
};

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

void move(double& mean, double rounds, double seen) {
  mean += (seen - mean) / std::min(rounds, 16.0);
}

}  // namespace

void learn_speeds(const PolicyInput& input, SharesNotes& notes) {
  note_shares(input.plan, notes);
  const std::vector<Seen> counted = reports_that_count(input, notes);
  if (counted.empty()) return;
  const double common = common_factor(counted, notes);
  Noise noise(notes);
  for (const Seen& seen : counted) noise.see(seen.rank, seen.per_sample / common);
  noise.learn();
  Levels levels(notes, input.config.shares.smallest_gain_ratio);
  double together = counted.front().communication;
  for (const Seen& seen : counted) {
    levels.see(seen.rank, seen.per_sample / common);
    move(notes.fixed()[seen.rank], notes.seen()[seen.rank], seen.fixed / common);
    together = std::min(together, seen.communication);
    if (input.job.micro_batch == 0) learn_cap(*seen.report, notes.cap()[seen.rank]);
  }
  notes.settled_rounds() += 1;
  const double rounds = std::max(1.0, std::min(notes.settled_rounds(), 8.0));
  notes.scale() += (common - notes.scale()) / rounds;
  notes.shared_seconds() += (together - notes.shared_seconds()) / rounds;
}

double level_deviation(SharesNotes& notes, std::size_t rank) {
  return deviation_of(notes, rank) / std::sqrt(notes.count()[rank]);
}

}  // namespace cox
