#include "coordinator/estimates/slowness.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "coordinator/core/selection.h"
#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kNoisyRatio = 2;       // of variances, from which a rank has its own
constexpr double kOwnPastRounds = 32;   // an own past shorter than that says nothing
constexpr double kOwnPastMargin = 2.5;  // deviations by which a baseline may be wrong
constexpr double kRemembered = 256;     // rounds for which a recovered rank is told
constexpr std::size_t kMostRecovered = 64;
constexpr double kOrdinaryAllowance = 0.5;  // a k below belongs to noise larger than the slowdown
constexpr double kMostSlowRounds = 32;      // that are counted
constexpr double kStandsOut = 0.75;         // deviations, of a slow round in noise as large as that
constexpr double kLargest = 1e18;

// ---- Tests.

// The facts that all channels of a round share.
struct Round : SpellRound {
  double rate = 0;  // of false alarms, per rank and round
  std::uint32_t min_reports = 0;
  bool own_past = false;
  std::vector<RankRun> runs;
  std::vector<SlowRank> entries;    // ranks that are suspected or confirmed; ascending
  std::vector<SlowRank> recovered;  // from earlier rounds; ascending ranks
  std::vector<double> place;        // per rank: 1 + its place among the entries; 0 = it has none
  std::vector<double> slow;         // per rank: as excess_of() wants it
};

// Rounds that are shorter than the system's own scheduling is fine would be all noise: there the
// least seconds decide which slowdown is worth naming.
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
  const auto same = std::ranges::unique(round.entries, {}, &SlowRank::rank);
  round.entries.erase(same.begin(), same.end());
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

// The whole takes half of the false alarms that are allowed, the phases share the rest.
double rate_of(const Round& round, std::size_t channel) {
  return round.rate / (channel == 0 ? 1 : static_cast<double>(kOwnPhases.size()));
}

// Whether noise is larger than the smallest slowdown worth naming. The test for that is slow even
// to find what stands out; a second one, for slowdowns of two deviations, is sooner there, and both
// share the rate of false alarms.
bool is_wild(const CusumScale& test) {
  return test.k < kOrdinaryAllowance;
}

CusumTest test_of(const Round& round, std::size_t channel, double variance) {
  const double rate = rate_of(round, channel);
  CusumTest test = make_cusum_test(round.shift, std::sqrt(variance), rate);
  if (is_wild(test) && !round.own_past) test.h = cusum_threshold(test.k, rate / 2);
  return test;
}

CusumTest large_test_of(const Round& round, std::size_t channel, double sigma) {
  return make_cusum_test(2 * sigma, sigma, rate_of(round, channel) / 2);
}

// The test that belongs to a rank's noise now, when `ordinary` is that of the others.
CusumTest test_for(const Round& round, const Slowness& slowness, std::size_t channel,
                   std::size_t rank, const CusumTest& ordinary) {
  const double own = slowness.channels[channel].variance[rank];
  const bool is_noisy = own > kNoisyRatio * ordinary.sigma * ordinary.sigma;
  return is_noisy ? test_of(round, channel, own) : ordinary;
}

// Adds the scores of ranks that are neither slow nor noisier than the others, which is nearly all
// of them: short loops without a branch, of which each takes several ranks at once. Returns how
// many ranks are left.
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

// Returns the rank's place among the entries. REQUIRES: it has one.
std::size_t place_of(const Round& round, std::size_t rank) {
  return static_cast<std::size_t>(round.place[rank]) - 1;
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

// ---- Verdicts.

// The running mean of what the rank's phase costs it over what it is compared with.
double level_of(const Slowness& slowness, const SlowRank& entry, std::uint32_t phase_index) {
  const auto rank = static_cast<std::size_t>(entry.rank.value());
  if (entry.against == ComparedWith::other_rank)
    return slowness.other_rank.level[1 + phase_index][rank % 2];
  return slowness.channels[1 + phase_index].level[rank];
}

std::uint32_t costliest_phase(const Slowness& slowness, const SlowRank& entry) {
  std::uint32_t costliest = 0;
  for (std::uint32_t p = 1; p < kOwnPhases.size(); ++p) {
    if (level_of(slowness, entry, p) > level_of(slowness, entry, costliest)) costliest = p;
  }
  return costliest;
}

// The running level has taken up only a part of a change that is this young: all of it where the
// change is as old as the reports of the rank, whose first ones count as a plain mean.
double excess_since_onset(double level, double rounds, double reports) {
  double left = 1;
  for (double n = 0; n < std::min({rounds, reports, 64.0}); ++n) {
    left *= 1 - std::max(1 / (reports - n), 1 / kLevelRounds);
  }
  return level / (1 - left);
}

// The ordinary tests of a round; those of channels that are not in use are empty.
using Tests = std::array<std::optional<CusumTest>, kChannels>;

SlowRank make_entry(const Slowness& slowness, const Round& round, std::size_t rank, double since) {
  SlowRank entry;
  entry.rank = rank_id(rank);
  entry.phase_index = costliest_phase(slowness, entry);
  entry.since = round_id(std::min(since, round.number));
  entry.suspected_at = round_id(round.number);
  entry.phase_since = entry.until = round_id(round.number);
  const double age = std::max(round.number - since + 1, 1.0);
  entry.rounds = std::min(age, slowness.reports[rank]);
  const auto earlier = std::ranges::lower_bound(round.recovered, entry.rank, {}, &SlowRank::rank);
  if (earlier != round.recovered.end() && earlier->rank == entry.rank)
    entry.short_spells = earlier->short_spells;
  return entry;
}

// Returns the slow rounds behind a sum that wild noise reaches now and then as well; none where it
// is not wild.
std::optional<double> counted_rounds(const SlownessChannel& channel, const CusumTest& test,
                                     std::size_t rank) {
  if (!is_wild(test)) return std::nullopt;
  return channel.slow_rounds.empty() ? 0 : channel.slow_rounds[rank];
}

// Returns the test of the channel that the rank has reached, if any. `ordinary` is that of ordinary
// ranks.
std::optional<ReachedTest> reached_test(const Slowness& slowness, const Round& round, std::size_t c,
                                        std::size_t rank, const CusumTest& ordinary) {
  const SlownessChannel& channel = slowness.channels[c];
  const double sum = channel.sum[rank];
  // The common threshold is the lowest, so most ranks need no second look.
  if (sum >= ordinary.h) {
    const CusumTest test = test_for(round, slowness, c, rank, ordinary);
    if (sum >= test.h)
      return ReachedTest{test, sum, channel.since[rank], counted_rounds(channel, test, rank)};
  }
  if (channel.large_sum.empty()) return std::nullopt;
  const CusumTest large = large_test_of(round, c, ordinary.sigma);
  if (channel.large_sum[rank] < large.h) return std::nullopt;
  const double slow = channel.slow_rounds[rank];
  return ReachedTest{large, channel.large_sum[rank], round.number - std::max(slow, 1.0) + 1, slow};
}

std::optional<SlowRank> found_slow(const Slowness& slowness, const Round& round, const Tests& tests,
                                   std::size_t rank) {
  const double level = slowness.channels[0].level[rank];
  const double least =
      round.own_past ? std::max<double>(round.min_reports, kOwnPastRounds) : round.min_reports;
  if (slowness.reports[rank] < least || level < round.shift / 2) return std::nullopt;
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!tests[c]) continue;
    const auto reached = reached_test(slowness, round, c, rank, *tests[c]);
    if (!reached) continue;
    SlowRank entry = make_entry(slowness, round, rank, reached->since);
    entry.against = round.own_past ? ComparedWith::own_past : ComparedWith::others;
    const double mean =
        excess_since_onset(level, round.number - reached->since + 1, slowness.reports[rank]);
    begin_evidence(entry, *reached, mean, slowness.channels[0].variance[rank]);
    return entry;
  }
  return std::nullopt;
}

// Returns by how much the running levels of two phases of a rank may differ by noise: three
// deviations of a difference, each level being a mean over some rounds.
double level_noise(const Slowness& slowness, std::size_t rank, std::uint32_t a, std::uint32_t b) {
  const double variance =
      slowness.channels[1 + a].variance[rank] + slowness.channels[1 + b].variance[rank];
  return 3 * std::sqrt(variance / (2 * kLevelRounds - 1));
}

void follow_phase(SlowRank& entry, const Slowness& slowness, const Round& round) {
  const auto rank = static_cast<std::size_t>(entry.rank.value());
  const std::uint32_t now = costliest_phase(slowness, entry);
  const double level = slowness.channels[0].level[rank];
  const double more = level_of(slowness, entry, now) - level_of(slowness, entry, entry.phase_index);
  const auto settled = static_cast<double>(entry.phase_since.value()) + round.min_reports;
  const bool is_costly = std::min(level, more) >= round.shift / 2 &&
                         more >= level_noise(slowness, rank, now, entry.phase_index);
  const bool is_young = entry.state == SlowState::suspected;
  if (!is_young && (!is_costly || round.number < settled)) return;
  entry.phase_index = now;
  entry.phase_since = round_id(round.number);
}

void forget_sums(Slowness& slowness, std::size_t rank) {
  for (SlownessChannel& channel : slowness.channels) {
    channel.sum[rank] = 0;
    if (!channel.large_sum.empty()) channel.large_sum[rank] = channel.slow_rounds[rank] = 0;
  }
  if (rank < 2) slowness.other_rank.sum[rank] = 0;
}

SpellEvidence evidence_of(const Slowness& slowness, const Round& round, const Tests& tests,
                          const Excess& excess, const SlowRank& entry, std::size_t report) {
  const auto rank = static_cast<std::size_t>(entry.rank.value());
  if (entry.against == ComparedWith::other_rank) {
    const RankPair& other = slowness.other_rank;
    const double level = other.level[0][rank % 2];
    return {excess.ranks.size() == 2 ? excess.of_other[0][report] : level, other.variance, level,
            rank_pair_test(other, round.shift, round.rate).h};
  }
  const SlownessChannel& whole = slowness.channels[0];
  const CusumTest test = tests[0] ? test_for(round, slowness, 0, rank, *tests[0])
                                  : test_of(round, 0, whole.variance[rank]);
  return {excess.of[0][report], std::max(whole.variance[rank], whole.pooled_variance),
          whole.level[rank], test.h};
}

// Takes an entry through the round.
void follow_entry(Slowness& slowness, const Round& round, const SpellEvidence& evidence,
                  SlowRank& entry) {
  add_round(entry, round, evidence);
  if (entry.state == SlowState::recovered) {
    slowness.spells.learn(entry, round.least_rounds);
    forget_sums(slowness, static_cast<std::size_t>(entry.rank.value()));
    return;
  }
  follow_phase(entry, slowness, round);
  confirm(entry, round, evidence.level);
}

// ---- Two ranks: each against the other one.

// Adds the round to the tests of both ranks and to the entries that rest on them.
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

std::optional<SlowRank> found_against_other(const Slowness& slowness, const Round& round,
                                            std::size_t rank) {
  const RankPair& other = slowness.other_rank;
  if (slowness.reports.size() != 2 || other.rounds < kRankPairRounds) return std::nullopt;
  const CusumTest test = rank_pair_test(other, round.shift, round.rate);
  const double level = other.level[0][rank];
  if (other.sum[rank] < test.h || level < least_other_shift(round.shift)) return std::nullopt;
  SlowRank entry = make_entry(slowness, round, rank, other.since[rank]);
  entry.against = ComparedWith::other_rank;
  entry.phase_index = costliest_phase(slowness, entry);
  begin_evidence(
      entry,
      {test, other.sum[rank], other.since[rank], is_wild(test) ? std::optional(0.0) : std::nullopt},
      level, other.variance);
  return entry;
}

// ---- A round over all ranks.

std::optional<SlowRank> found(const Slowness& slowness, const Round& round, const Tests& tests,
                              std::size_t rank) {
  if (const auto slow = found_slow(slowness, round, tests, rank)) return slow;
  return found_against_other(slowness, round, rank);
}

// Counts the reports and judges every rank of the round that is slow or may be. Entries that were
// not reported on stay as they are.
void judge(Slowness& slowness, Round& round, const Tests& tests, const Excess& excess) {
  std::vector<SlowRank> added;
  const std::vector<double>& level = slowness.channels[0].level;
  for (const RankRun& run : round.runs) {
    for (std::size_t i = 0; i < run.size; ++i) {
      const std::size_t rank = run.rank + i;
      slowness.reports[rank] += 1;
      const bool is_ordinary = round.place[rank] == 0;
      if (is_ordinary && !round.own_past && level[rank] < round.shift / 2) continue;
      if (is_ordinary) {
        if (auto slow = found(slowness, round, tests, rank)) {
          confirm(*slow, round, portable_log(slow->slowdown_ratio));
          added.push_back(*slow);
        }
        continue;
      }
      SlowRank& entry = round.entries[place_of(round, rank)];
      const SpellEvidence evidence =
          evidence_of(slowness, round, tests, excess, entry, run.report + i);
      follow_entry(slowness, round, evidence, entry);
    }
  }
  const auto begin = round.entries.insert(round.entries.end(), added.begin(), added.end());
  std::ranges::inplace_merge(round.entries, begin, {}, &SlowRank::rank);
}

// Puts the lists together again. Ranks that recovered long ago are ordinary.
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

// A rank without work left keeps nobody waiting.
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

bool is_bounded(std::span<const double> values) {
  return std::ranges::all_of(values, [](double value) { return std::fabs(value) <= kLargest; });
}

bool are_bounded(const ChannelColumns& columns) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!is_bounded(columns[c])) return false;
  }
  return true;
}

}  // namespace

Slowness fresh_slowness(std::size_t ranks) {
  Slowness slowness;
  slowness.reports.assign(ranks, 0.0);
  for (SlownessChannel& channel : slowness.channels) {
    for (auto* column : {&channel.level, &channel.variance, &channel.sum, &channel.since}) {
      column->assign(ranks, 0.0);
    }
  }
  if (!compares_with_own_past(ranks)) return slowness;
  slowness.own_past.seconds = slowness.own_past.at_equal_samples = ChannelColumns(ranks);
  return slowness;
}

bool fits(const Slowness& slowness, std::size_t ranks) {
  const std::size_t past = compares_with_own_past(ranks) ? ranks : 0;
  return slowness.reports.size() == ranks && slowness.own_past.seconds.rows() == past &&
         slowness.own_past.at_equal_samples.rows() == past &&
         std::ranges::all_of(slowness.channels, [&](const SlownessChannel& channel) {
           const std::size_t large = channel.large_sum.size();
           return channel.level.size() == ranks && channel.variance.size() == ranks &&
                  channel.sum.size() == ranks && channel.since.size() == ranks &&
                  (large == 0 || large == ranks) && channel.slow_rounds.size() == large;
         });
}

bool Slowness::is_sane() const {
  const auto is_slow_rank = [&](const SlowRank& one) {
    return one.is_sane() && static_cast<std::size_t>(one.rank.value()) < reports.size();
  };
  const auto is_count = [](double rounds) { return rounds >= 0 && rounds <= kMostSlowRounds; };
  const auto is_channel = [&](const SlownessChannel& channel) {
    const bool all = is_bounded(channel.level) && is_bounded(channel.variance) &&
                     is_bounded(channel.sum) && is_bounded(channel.since) &&
                     is_bounded(channel.large_sum) &&
                     std::ranges::all_of(channel.slow_rounds, is_count);
    return all && channel.pooled_variance >= 0 && channel.pooled_variance <= kLargest &&
           channel.pooled_samples >= 0 && channel.pooled_samples <= kLargest;
  };
  const auto not_ascending = [](const SlowRank& a, const SlowRank& b) { return a.rank >= b.rank; };
  const auto is_confirmed = [](const SlowRank& one) { return one.state == SlowState::confirmed; };
  return std::ranges::all_of(slow, is_slow_rank) && std::ranges::all_of(slow, is_confirmed) &&
         std::ranges::adjacent_find(slow, not_ascending) == slow.end() &&
         std::ranges::all_of(watched, is_slow_rank) &&
         std::ranges::none_of(watched, is_confirmed) &&
         std::ranges::adjacent_find(watched, not_ascending) == watched.end() && pace.is_sane() &&
         spells.is_sane() && is_bounded(reports) && own_past.reference_samples >= 0 &&
         own_past.reference_samples <= kLargest && are_bounded(own_past.seconds) &&
         are_bounded(own_past.at_equal_samples) &&
         std::ranges::all_of(reports, [](double seen) { return seen >= 0; }) &&
         std::ranges::all_of(channels, is_channel);
}

Slowness after_restart(Slowness slowness) {
  for (SlownessChannel& channel : slowness.channels) {
    std::ranges::fill(channel.sum, 0.0);
    std::ranges::fill(channel.since, 0.0);
    channel.large_sum.clear();
    channel.slow_rounds.clear();
  }
  slowness.watched.clear();
  slowness.pace = {};
  slowness.other_rank = {};
  for (SlowRank& slow : slowness.slow)
    slow.since = slow.suspected_at = slow.phase_since = slow.until = RoundId(0);
  return slowness;
}

Slowness learn_slowness(Slowness before, const StepSignals& signals, Timings timings,
                        const StepSummary& summary, const SampleFacts& samples,
                        const StragglerConfig& settings) {
  Slowness now = std::move(before);
  release_finished(now, signals, summary);
  Round round = round_of(now, summary, settings);
  Excess excess = excess_of(std::move(timings), signals.reports, summary, samples, now.reports,
                            round.slow, std::move(now.own_past));
  now.own_past = std::move(excess.past);
  if (now.reports.size() > 1)  // a single rank says it itself
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
