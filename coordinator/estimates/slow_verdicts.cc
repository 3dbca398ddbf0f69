// Judges, after each round, every rank that is slow or may be.
#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/estimates/portable_math.h"
#include "coordinator/estimates/slowness_round.h"

namespace cox {
namespace {

constexpr double kOwnPastRounds = 32;       // a shorter own past says nothing
constexpr double kOrdinaryAllowance = 0.5;  // a smaller k means that noise exceeds the slowdown

// The whole takes half of the allowed false alarms; the phases share the rest.
double rate_of(const Round& round, std::size_t channel) {
  return round.rate / (channel == 0 ? 1 : static_cast<double>(kOwnPhases.size()));
}

// Returns the test for a rank's present noise. `ordinary` is the test of the other ranks.
CusumTest test_for(const Round& round, const Slowness& slowness, std::size_t channel,
                   std::size_t rank, const CusumTest& ordinary) {
  const double own = slowness.channels[channel].variance[rank];
  const bool is_noisy = own > kNoisyRatio * ordinary.sigma * ordinary.sigma;
  return is_noisy ? test_of(round, channel, own) : ordinary;
}

// Returns the running mean of the phase's excess, against the same reference as the entry.
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

// The running level has followed only a part of a young change. If the change is as old as the
// rank's reports, the level has followed all of it, because the first reports count as a plain
// mean.
double excess_since_onset(double level, double rounds, double reports) {
  double left = 1;
  for (double n = 0; n < std::min({rounds, reports, 64.0}); ++n) {
    left *= 1 - std::max(1 / (reports - n), 1 / kLevelRounds);
  }
  return level / (1 - left);
}

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

// Returns the counted slow rounds if noise is wild, because wild noise alone may reach a sum.
// Returns none otherwise.
std::optional<double> counted_rounds(const SlownessChannel& channel, const CusumTest& test,
                                     std::size_t rank) {
  if (!is_wild(test)) return std::nullopt;
  return channel.slow_rounds.empty() ? 0 : channel.slow_rounds[rank];
}

// Returns the test of the channel that the rank has reached, if any. `ordinary` is the test of
// ordinary ranks.
std::optional<ReachedTest> reached_test(const Slowness& slowness, const Round& round, std::size_t c,
                                        std::size_t rank, const CusumTest& ordinary) {
  const SlownessChannel& channel = slowness.channels[c];
  const double sum = channel.sum[rank];
  // The common threshold is the lowest, so most ranks need no second test.
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

// Returns how far noise may move apart the running levels of two phases of a rank: three deviations
// of the difference of two means.
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

// Updates an entry after the round.
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

std::optional<SlowRank> found(const Slowness& slowness, const Round& round, const Tests& tests,
                              std::size_t rank) {
  if (const auto slow = found_slow(slowness, round, tests, rank)) return slow;
  return found_against_other(slowness, round, rank);
}

}  // namespace

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

void forget_sums(Slowness& slowness, std::size_t rank) {
  for (SlownessChannel& channel : slowness.channels) {
    channel.sum[rank] = 0;
    if (!channel.large_sum.empty()) channel.large_sum[rank] = channel.slow_rounds[rank] = 0;
  }
  if (rank < 2) slowness.other_rank.sum[rank] = 0;
}

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

}  // namespace cox
