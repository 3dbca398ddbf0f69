#include "coordinator/estimates/slowness_round.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kOwnPastMargin = 2.5;  // deviations by which a baseline may be wrong
constexpr double kRemembered = 256;     // rounds for which a recovered rank stays in the list
constexpr std::size_t kMostRecovered = 64;
constexpr double kStandsOut = 0.75;  // deviations from which a round counts as slow, in large noise

// ---- Tests.

// Returns the smallest slowdown worth naming, as a ratio. In short rounds `slowdown_seconds` sets
// the ratio, because differences below the granularity of the system's scheduler are noise.
double smallest_slowdown(const StepSummary& summary, const StragglerConfig& settings) {
  const double own = std::max(summary.own_seconds.median, 1e-9);
  return std::max(settings.slowdown_ratio, 1 + settings.slowdown_seconds / own);
}

// Moves the lists of ranks that are not ordinary from `before` into the round.
void take_entries(Slowness& before, Round& round) {
  round.entries = std::move(before.slow);
  const auto confirmed = static_cast<std::ptrdiff_t>(round.entries.size());
  for (SlowRank& one : before.watched) {
    auto& list = one.state == SlowState::suspected ? round.entries : round.recovered;
    list.push_back(one);
  }
  before.slow.clear();
  before.watched.clear();
  std::ranges::inplace_merge(round.entries, round.entries.begin() + confirmed, {}, &SlowRank::rank);
  const auto is_same = [](const SlowRank& a, const SlowRank& b) { return a.rank == b.rank; };
  auto& entries = round.entries;
  entries.erase(std::unique(entries.begin(), entries.end(), is_same), entries.end());
  round.place.assign(before.reports.size(), 0.0);
  round.slow.assign(before.reports.size(), 0.0);
  for (std::size_t i = 0; i < round.entries.size(); ++i) {
    const auto rank = static_cast<std::size_t>(round.entries[i].rank.value());
    round.place[rank] = static_cast<double>(i + 1);
    round.slow[rank] = round.entries[i].state == SlowState::confirmed ? kSurelySlow : 1;
  }
}

Round round_of(Slowness& before, const StepSummary& summary, const StragglerConfig& settings) {
  Round round;
  round.number = static_cast<double>(std::min(summary.round.value(), kLastRound));
  before.spells.pass_round(std::max(summary.wall_seconds.median, summary.own_seconds.median));
  round.shift = portable_log(smallest_slowdown(summary, settings));
  round.rate = settings.false_alarms_per_rank_step / 2;
  round.own_past = compares_with_own_past(before.reports.size());
  round.min_reports = settings.min_rounds;
  round.least_rounds = before.spells.least_rounds(settings);
  take_entries(before, round);
  return round;
}

// Adds the scores of ordinary ranks: those without an entry and not noisier than the others, which
// are nearly all. The loops are short and without a branch, so that each is vectorised. Returns the
// number of ranks of the run that are left for add_other_scores().
double add_ordinary_scores(SlownessChannel& channel, const Round& round, const RankRun& run,
                           const CusumScale& test, double noisy, std::span<const double> excess) {
  const double number = round.number;
  const double sigma = test.sigma;
  const double k = test.k;
  const double* const seen = &excess[run.report];
  const double* const place = &round.place[run.rank];
  const double* const variance = &channel.variance[run.rank];
  double* const sum = &channel.sum[run.rank];
  double* const since = &channel.since[run.rank];
  const auto is_other = [&](std::size_t r) { return (place[r] != 0) | (variance[r] > noisy); };
  for (std::size_t r = 0; r < run.size; ++r) {
    const double before = since[r];
    since[r] = is_other(r) | (sum[r] != 0) ? before : number;
  }
  for (std::size_t r = 0; r < run.size; ++r) {
    const double before = sum[r];
    const double next = cusum_step(before, seen[r] / sigma, k);
    sum[r] = is_other(r) ? before : next;
  }
  double left = 0;
  for (std::size_t r = 0; r < run.size; ++r) left += is_other(r) ? 1 : 0;
  return left;
}

void add_large_scores(SlownessChannel& channel, const Round& round, const CusumTest& ordinary,
                      double noisy, std::span<const double> excess) {
  channel.large_sum.resize(channel.sum.size());
  channel.slow_rounds.resize(channel.sum.size());
  for (const RankRun& run : round.runs) {
    for (std::size_t i = 0; i < run.size; ++i) {
      const std::size_t rank = run.rank + i;
      const double seen = excess[run.report + i];
      const double own = channel.variance[rank];
      const double sigma = own > noisy ? std::sqrt(own) : ordinary.sigma;
      double& sum = channel.large_sum[rank];
      sum = round.place[rank] != 0 ? 0 : cusum_step(sum, seen / sigma, kMaxAllowance);
      double& slow = channel.slow_rounds[rank];
      const bool stands_out = seen > std::max(round.shift / 2, kStandsOut * sigma);
      slow = stands_out ? std::min(slow + 1, kMostSlowRounds) : std::max(slow - 2, 0.0);
    }
  }
}

void add_score(Slowness& slowness, std::size_t c, Round& round, std::size_t rank, double excess,
               const CusumScale& test) {
  SlownessChannel& channel = slowness.channels[c];
  double score = excess / test.sigma;
  if (round.own_past) {
    score -= kOwnPastMargin / std::sqrt(std::min(slowness.reports[rank], kBaselineRounds));
  }
  if (round.place[rank] == 0) {
    double& sum = channel.sum[rank];
    if (sum == 0) channel.since[rank] = round.number;
    sum = cusum_step(sum, score, test.k);
  } else if (c == 0) {
    SlowRank& entry = round.entries[place_of(round, rank)];
    if (entry.against != ComparedWith::other_rank) add_recovery(entry, score, test.k);
  }
}

void add_other_scores(Slowness& slowness, std::size_t c, Round& round, const RankRun& run,
                      const CusumScale& ordinary, double noisy, std::span<const double> excess) {
  const std::vector<double>& own = slowness.channels[c].variance;
  for (std::size_t r = 0; r < run.size; ++r) {
    const std::size_t rank = run.rank + r;
    const bool is_noisy = own[rank] > noisy;
    if (!round.own_past && round.place[rank] == 0 && !is_noisy) continue;
    if (round.own_past && slowness.reports[rank] == 0) continue;
    const CusumScale test =
        is_noisy ? make_cusum_scale(round.shift, std::sqrt(own[rank])) : ordinary;
    add_score(slowness, c, round, rank, excess[run.report + r], test);
  }
}

// Learns a channel's noise and adds the round to its tests. Returns the test of ordinary ranks.
CusumTest add_round(Slowness& slowness, std::size_t c, Round& round,
                    std::span<const double> excess) {
  SlownessChannel& channel = slowness.channels[c];
  const double variance = learn_noise(channel, round.runs, excess);
  const CusumTest ordinary = test_of(round, c, variance);
  const double noisy = kNoisyRatio * variance;
  for (const RankRun& run : round.runs) {
    const double left =
        round.own_past ? 1 : add_ordinary_scores(channel, round, run, ordinary, noisy, excess);
    if (left > 0) add_other_scores(slowness, c, round, run, ordinary, noisy, excess);
  }
  if (is_wild(ordinary) && !round.own_past) {
    add_large_scores(channel, round, ordinary, noisy, excess);
  } else {
    channel.large_sum.clear();
    channel.slow_rounds.clear();
  }
  return ordinary;
}

// ---- Two ranks: each against the other one.

// Adds the round to the tests of both ranks and to the entries that depend on these tests.
void compare_two(Slowness& slowness, Round& round, const Excess& excess) {
  RankPair& other = slowness.other_rank;
  learn_rank_pair(other, excess);
  const CusumTest test = rank_pair_test(other, round.shift, round.rate);
  for (std::size_t r = 0; r < 2; ++r) {
    const double score = excess.of_other[0][r] / test.sigma;
    if (round.place[r] != 0) {
      SlowRank& entry = round.entries[place_of(round, r)];
      if (entry.against == ComparedWith::other_rank) add_recovery(entry, score, test.k);
      continue;
    }
    if (other.sum[r] == 0) other.since[r] = round.number;
    other.sum[r] = cusum_step(other.sum[r], score, test.k);
  }
}

// ---- Lists.

// Stores the lists in `slowness`. Ranks that recovered long ago become ordinary.
void put_entries(Slowness& slowness, Round& round) {
  std::vector<SlowRank>& recovered = round.recovered;
  std::erase_if(recovered, [&](const SlowRank& one) {
    const bool is_back = std::ranges::binary_search(round.entries, one.rank, {}, &SlowRank::rank);
    return is_back || static_cast<double>(one.until.value()) + kRemembered < round.number;
  });
  slowness.slow.reserve(round.entries.size());
  for (const SlowRank& one : round.entries) {
    if (one.state == SlowState::confirmed) slowness.slow.push_back(one);
    if (one.state == SlowState::suspected) slowness.watched.push_back(one);
    if (one.state == SlowState::recovered) recovered.push_back(one);
  }
  if (recovered.size() > kMostRecovered) {
    std::ranges::nth_element(recovered, recovered.begin() + kMostRecovered, std::ranges::greater{},
                             &SlowRank::until);
    recovered.resize(kMostRecovered);
  }
  slowness.watched.insert(slowness.watched.end(), recovered.begin(), recovered.end());
  std::ranges::sort(slowness.watched, {}, &SlowRank::rank);
}

// Drops the entries of ranks that have finished, because such ranks delay no other rank.
void release_finished(Slowness& slowness, const StepSignals& signals, const StepSummary& summary) {
  if (summary.finished == 0) return;
  const auto has_finished = [&](const SlowRank& slow) {
    const auto report = std::ranges::lower_bound(signals.reports, slow.rank, {}, &RankSignal::rank);
    const bool is_gone = report != signals.reports.end() && report->rank == slow.rank &&
                         report->has(SignalFlag::finished);
    if (is_gone) forget_sums(slowness, static_cast<std::size_t>(slow.rank.value()));
    return is_gone;
  };
  std::erase_if(slowness.slow, has_finished);
  std::erase_if(slowness.watched, has_finished);
}

PaceOfRound pace_of(const StepSummary& summary, const Round& round, const Excess& excess) {
  PaceOfRound pace;
  pace.round = RoundId(std::min(summary.round.value(), kLastRound));
  pace.plan = summary.plan_applied_max;
  pace.seconds = excess.ordinary_seconds;
  pace.seconds_per_sample =
      excess.ordinary_seconds / (excess.mean_samples > 0 ? excess.mean_samples : 1);
  pace.least_rounds = round.least_rounds;
  return pace;
}

}  // namespace

Slowness learn_slowness(Slowness before, const StepSignals& signals, Timings timings,
                        const StepSummary& summary, const SampleFacts& samples,
                        const StragglerConfig& settings) {
  Slowness now = std::move(before);
  release_finished(now, signals, summary);
  Round round = round_of(now, summary, settings);
  Excess excess = excess_of(std::move(timings), signals.reports, summary, samples, now.reports,
                            round.slow, std::move(now.own_past));
  now.own_past = std::move(excess.past);
  if (now.reports.size() > 1)  // for a single rank its own finding is enough
    now.pace = learn_pace(std::move(now.pace), pace_of(summary, round, excess), settings);
  if (!excess.ranks.empty()) {
    round.runs = runs_of(excess.ranks, now.reports);
    Tests tests;
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (excess.in_use[c]) tests[c] = add_round(now, c, round, excess.of[c]);
    }
    if (round.own_past && excess.ranks.size() == 2) compare_two(now, round, excess);
    judge(now, round, tests, excess);
  }
  put_entries(now, round);
  return now;
}

}  // namespace cox
