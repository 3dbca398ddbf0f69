#include "coordinator/estimates/excess.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/selection.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr std::size_t kLeaveOneOutBelow = 64;  // with more ranks, one rank does not move the median

using Flags = std::array<bool, kChannels>;

// ---- Work: the seconds of a round, by channel.

struct Work {
  Timings timings;
  ChannelColumns at_equal_samples;  // without rows if samples were equal
  Flags as_reported{};              // true = the column equals the summary's, so its median holds
  Flags in_use{};                   // false = no rank spent time there
  double mean_samples = 0;          // 0 if some rank counts none

  std::size_t size() const { return timings.ranks.size(); }
  bool are_few() const { return size() < kLeaveOneOutBelow; }
  bool has_unequal_samples() const { return !at_equal_samples.empty(); }
  std::span<const double> seconds(std::size_t channel) const {
    if (channel == 0) return timings.own;
    return timings.of(kOwnPhases[channel - 1]);
  }
  std::span<const double> at_equal(std::size_t channel) const;
};

constexpr bool grows_with_samples(Phase phase) {
  return phase != Phase::optimizer && phase != Phase::other;
}

constexpr std::size_t channel_of(Phase phase) {
  const auto* const at = std::find(kOwnPhases.begin(), kOwnPhases.end(), phase);
  return 1 + static_cast<std::size_t>(at - kOwnPhases.begin());
}
constexpr std::size_t kBackward = channel_of(Phase::backward);
constexpr std::size_t kCommunication = channel_of(Phase::communication);

bool changes_with_samples(const Flags& in_use, std::size_t channel) {
  return channel == 0 || (in_use[channel] && grows_with_samples(kOwnPhases[channel - 1]));
}

std::span<const double> Work::at_equal(std::size_t channel) const {
  if (!has_unequal_samples() || !changes_with_samples(in_use, channel)) return seconds(channel);
  return at_equal_samples[channel];
}

void add_seconds(std::span<double> to, double sign, std::span<const double> seconds) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += sign * seconds[i];
}

// Turns the timings into own work: subtracts the planned cost of memory actions, and adds a rank's
// own part of communication. Compares communication only if all ranks measure their waiting. If
// ranks outnumber cores, no rank does: after the last rank has arrived, a call still waits until
// its peers get a core.
void take_own_work(Work& work) {
  Timings& timings = work.timings;
  const std::span<double> communication = timings.of(Phase::communication);
  const auto is_spent = [](double seconds) { return seconds > 0; };
  if (std::ranges::any_of(timings.recompute, is_spent)) {
    add_seconds(timings.of(Phase::backward), -1, timings.recompute);
    add_seconds(timings.own, -1, timings.recompute);
    work.as_reported[0] = work.as_reported[kBackward] = false;
  }
  if (!timings.all_measure_waiting) {
    work.in_use[kCommunication] = false;
    std::ranges::fill(communication, 0.0);
    return;
  }
  add_seconds(communication, -1, timings.waiting);
  add_seconds(timings.own, 1, communication);
  work.as_reported[0] = work.as_reported[kCommunication] = false;
}

// Returns the seconds that each rank would have taken for `reference` samples, in the channels that
// depend on samples. The other channels have arbitrary values.
ChannelColumns scaled_to(double reference, const Work& work, double fixed_samples) {
  const std::vector<double>& samples = work.timings.samples;
  std::vector<double> factors(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    factors[i] = (reference + fixed_samples) / (samples[i] + fixed_samples);
  }
  ChannelColumns scaled = ChannelColumns::unfilled(work.size());
  const std::span<double> whole = scaled[0];
  std::ranges::copy(work.seconds(0), whole.begin());
  for (std::size_t c = 1; c < kChannels; ++c) {
    if (!changes_with_samples(work.in_use, c)) continue;
    const std::span<const double> before = work.seconds(c);
    const std::span<double> phase = scaled[c];
    for (std::size_t i = 0; i < factors.size(); ++i) {
      phase[i] = before[i] * factors[i];
      whole[i] += phase[i] - before[i];
    }
  }
  return scaled;
}

// Removes the ranks without samples.
void keep_with_samples(Timings& timings) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    if (!(timings.samples[i] > 0)) continue;
    timings.ranks[kept] = timings.ranks[i];
    for (auto* column : {&timings.own, &timings.waiting, &timings.recompute, &timings.samples})
      (*column)[kept] = (*column)[i];
    for (std::size_t p = 0; p < kPhases; ++p) timings.phases[p][kept] = timings.phases[p][i];
    ++kept;
  }
  timings.ranks.resize(kept);
  for (auto* column : {&timings.own, &timings.waiting, &timings.recompute, &timings.samples})
    column->resize(kept);
  timings.phases.keep_rows(kept);
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Returns the number of "equal" samples: those of the first round if a rank is compared with its
// own past, else the mean of this round.
double equal_samples(std::span<const double> samples, double& reference, bool own_past) {
  const double mean = mean_of(samples);
  if (!own_past) return mean;
  if (!(reference > 0)) reference = mean;
  return reference;
}

// If all ranks count tokens, a sample is one of mean length.
void count_by_tokens(std::span<const RankSignal> reports, Timings& timings) {
  double tokens = 0;
  for (const std::uint32_t place : timings.report) {
    if (reports[place].tokens == 0) return;
    tokens += static_cast<double>(reports[place].tokens) / reports[place].rounds;
  }
  double samples = 0;
  for (const double of_rank : timings.samples) samples += of_rank;
  for (std::size_t i = 0; i < timings.samples.size() && samples > 0; ++i) {
    const RankSignal& report = reports[timings.report[i]];
    timings.samples[i] = static_cast<double>(report.tokens) / report.rounds * (samples / tokens);
  }
}

Work work_of(Timings timings, std::span<const RankSignal> reports, const StepSummary& summary,
             const SampleFacts& facts, double& reference, bool own_past) {
  Work work;
  work.as_reported.fill(true);
  for (std::size_t c = 0; c < kChannels; ++c) {
    const auto phase = c == 0 ? 0 : static_cast<std::size_t>(kOwnPhases[c - 1]);
    work.in_use[c] = (c == 0 ? summary.own_seconds : summary.phases[phase]).max > 0;
  }
  if (!own_past) count_by_tokens(reports, timings);
  const auto has_none = [](double samples) { return !(samples > 0); };
  bool some_have_none = std::ranges::any_of(timings.samples, has_none);
  if (some_have_none && facts.by_plan) {
    keep_with_samples(timings);
    work.as_reported.fill(false);
    some_have_none = false;
  }
  work.timings = std::move(timings);
  take_own_work(work);
  const std::vector<double>& samples = work.timings.samples;
  if (some_have_none || samples.empty()) return work;  // samples do not measure work
  work.mean_samples = mean_of(samples);
  const double equal = equal_samples(samples, reference, own_past);
  const auto is_equal = [equal](double of_rank) { return of_rank == equal; };
  if (std::ranges::all_of(samples, is_equal)) return work;
  work.at_equal_samples = scaled_to(equal, work, facts.fixed_samples);
  return work;
}

// ---- Excess of a round, by channel.

// Returns an excess before its logarithm: 1 plus the channel's seconds beyond the expected ones, as
// a ratio of the expected whole. Returns 1 if nothing is expected.
double ratio_of(double seconds, double expected, double expected_own) {
  return expected_own > 0 ? 1 + (seconds - expected) / expected_own : 1;
}

// Returns the median of all values but one. The middle of the sorted values decides, and the half
// in which the left-out value lies.
class MedianOfOthers {
 public:
  // REQUIRES: at least two values, fewer than kLeaveOneOutBelow.
  explicit MedianOfOthers(std::span<const double> values) {
    std::array<double, kLeaveOneOutBelow> room;
    const std::size_t n = values.size();
    std::ranges::copy(values, room.begin());
    const std::span<double> sorted = std::span(room).first(n);
    std::ranges::sort(sorted);
    even_ = n % 2 == 0;
    const std::size_t m = n / 2;
    low_ = sorted[m - 1];
    middle_ = sorted[m];
    high_ = sorted[std::min(m + 1, n - 1)];
  }

  double without(double value) const {
    if (even_) return value <= low_ ? middle_ : low_;
    if (value == middle_) return (low_ + high_) / 2;
    return value < middle_ ? (middle_ + high_) / 2 : (low_ + middle_) / 2;
  }

 private:
  bool even_;
  double low_, middle_, high_;
};

// The medians of the whole and, with many ranks, of the channels in use.
using Medians = std::array<double, kChannels>;

Medians medians_of(const Work& work, const StepSummary& summary) {
  Medians medians{};
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (c != 0 && (work.are_few() || !work.in_use[c])) continue;
    if (!work.as_reported[c]) {
      medians[c] = median_of(work.seconds(c));
    } else if (c == 0) {
      medians[c] = summary.own_seconds.median;
    } else {
      medians[c] = summary.phases[static_cast<std::size_t>(kOwnPhases[c - 1])].median;
    }
  }
  return medians;
}

// Returns the medians at equal samples. `medians` belong to the same channels before scaling.
Medians medians_at_equal(const Work& work, Medians medians) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (changes_with_samples(work.in_use, c)) medians[c] = median_of(work.at_equal(c));
  }
  return medians;
}

// Compares each of few ranks with the others. Channels that are not in use get zeros.
template <class Seconds>
ChannelColumns few_over_others(const Work& work, const Seconds& seconds) {
  ChannelColumns ratios(work.size());
  const std::span<const double> own = seconds(0);
  const MedianOfOthers own_of_others(own);
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!work.in_use[c]) continue;
    const std::span<const double> column = seconds(c);
    const MedianOfOthers others(column);
    for (std::size_t i = 0; i < column.size(); ++i) {
      ratios[c][i] = ratio_of(column[i], others.without(column[i]), own_of_others.without(own[i]));
    }
  }
  return ratios;
}

// Compares many ranks with the same values.
void many_over_others(double expected, double expected_own, std::span<const double> seconds,
                      std::span<double> ratios) {
  if (!(expected_own > 0)) {
    std::ranges::fill(ratios, 1.0);
    return;
  }
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    ratios[i] = 1 + (seconds[i] - expected) / expected_own;
  }
}

// Moves a baseline towards `seconds`. An outlier moves the baseline as far as a three-fold time
// would.
void learn_baseline(double& baseline, double seconds, double reports) {
  const double weight = std::max(1 / (reports + 1), 1 / kBaselineRounds);
  const double seen = reports > 0 ? std::min(seconds, 3 * baseline) : seconds;
  baseline += weight * (seen - baseline);
}

// Subtracts from each of two ranks the slowness that the other one shares. From a slow rank also
// subtracts the other one's gain: work that a plan made shorter for both is no recovery.
void compare_pair(std::span<double> pair, bool first_is_slow, bool second_is_slow) {
  const double first = pair[0];
  const double second = pair[1];
  pair[0] -= first_is_slow && !second_is_slow ? second : std::max(0.0, second);
  pair[1] -= second_is_slow && !first_is_slow ? first : std::max(0.0, first);
}

// Compares one or two ranks with their own past. Baselines of ranks that are not slow move slowly
// towards this round.
template <class Seconds>
ChannelColumns over_own_past(const Seconds& seconds, std::span<const RankId> ranks,
                             std::span<const double> reports, std::span<const double> slow,
                             ChannelColumns& baselines) {
  ChannelColumns excess(ranks.size());
  for (std::size_t c = kChannels; c-- > 0;) {  // the whole last: phases need its old baseline
    const std::span<double> column = excess[c];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(ranks[i].value());
      double& baseline = baselines[c][rank];
      const double ratio = ratio_of(seconds(c)[i], baseline, baselines[0][rank]);
      column[i] = reports[rank] > 0 ? log_ratio(ratio) : 0.0;
      if (slow[rank] == 0) learn_baseline(baseline, seconds(c)[i], reports[rank]);
    }
    if (ranks.size() == 2) compare_pair(column, slow[0] == kSurelySlow, slow[1] == kSurelySlow);
  }
  return excess;
}

// With two ranks, moves the past of a slow one by the same ratio as the other one's, from `before`:
// the other rank shows how long the same work takes now.
void follow_other(std::span<const double> slow, const ChannelColumns& before, OwnPast& past) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (slow[i] != kSurelySlow) continue;
    for (std::size_t c = 0; c < kChannels; ++c) {
      const double old = before[c][1 - i];
      const double now = past.at_equal_samples[c][1 - i];
      if (!(old > 0 && now > 0)) continue;
      past.at_equal_samples[c][i] *= now / old;
      past.seconds[c][i] *= now / old;
    }
  }
}

// Keeps the lesser of both. For a rank that is slow or suspected keeps the one at equal samples.
// `slow` has an entry per report.
void take_lesser(std::span<double> excess, std::span<const double> at_equal,
                 std::span<const double> slow) {
  for (std::size_t i = 0; i < excess.size(); ++i) {
    const double lesser = std::min(excess[i], at_equal[i]);
    excess[i] = slow[i] != 0 ? at_equal[i] : lesser;
  }
}

std::vector<double> by_report(std::span<const RankId> ranks, std::span<const double> of_rank) {
  std::vector<double> values(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    values[i] = of_rank[static_cast<std::size_t>(ranks[i].value())];
  }
  return values;
}

ChannelColumns few_ratios(const Work& work, std::span<const double> slow) {
  ChannelColumns ratios = few_over_others(work, [&](std::size_t c) { return work.seconds(c); });
  if (!work.has_unequal_samples()) return ratios;
  const ChannelColumns at_equal =
      few_over_others(work, [&](std::size_t c) { return work.at_equal(c); });
  for (std::size_t c = 0; c < kChannels; ++c) take_lesser(ratios[c], at_equal[c], slow);
  return ratios;
}

ChannelColumns many_ratios(const Work& work, const Medians& medians, std::span<const double> slow) {
  const bool unequal = work.has_unequal_samples();
  const Medians at_equal = unequal ? medians_at_equal(work, medians) : medians;
  std::vector<double> room(unequal ? work.size() : 0);
  ChannelColumns ratios = ChannelColumns::unfilled(work.size());
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!work.in_use[c]) {
      std::ranges::fill(ratios[c], 0.0);
      continue;
    }
    many_over_others(medians[c], medians[0], work.seconds(c), ratios[c]);
    if (!unequal) continue;
    many_over_others(at_equal[c], at_equal[0], work.at_equal(c), room);
    take_lesser(ratios[c], room, slow);
  }
  return ratios;
}

ChannelColumns against_others(const Work& work, const Medians& medians,
                              std::span<const double> slow_ranks) {
  std::vector<double> slow;
  if (work.has_unequal_samples()) slow = by_report(work.timings.ranks, slow_ranks);
  ChannelColumns excess =
      work.are_few() ? few_ratios(work, slow) : many_ratios(work, medians, slow);
  for (std::size_t c = 0; c < kChannels; ++c) {  // still ratios
    if (!work.in_use[c]) continue;
    for (double& value : excess[c]) value = log_ratio(value);
  }
  return excess;
}

ChannelColumns against_own_past(const Work& work, std::span<const double> reports,
                                std::span<const double> slow_ranks, OwnPast& past) {
  const std::vector<double> slow = by_report(work.timings.ranks, slow_ranks);
  const auto as_it_was = [&work](std::size_t c) { return work.seconds(c); };
  const auto at_equal = [&work](std::size_t c) { return work.at_equal(c); };
  const std::vector<RankId>& ranks = work.timings.ranks;
  const ChannelColumns before = past.at_equal_samples;
  ChannelColumns excess = over_own_past(as_it_was, ranks, reports, slow_ranks, past.seconds);
  const ChannelColumns equal =
      over_own_past(at_equal, ranks, reports, slow_ranks, past.at_equal_samples);
  if (ranks.size() == 2) follow_other(slow_ranks, before, past);
  for (std::size_t c = 0; c < kChannels; ++c) take_lesser(excess[c], equal[c], slow);
  return excess;
}

// Compares two ranks with each other.
std::array<std::array<double, 2>, kChannels> against_other(const Work& work,
                                                           std::span<const double> slow) {
  std::array<std::array<double, 2>, kChannels> excess{};
  const auto over_other = [](auto seconds, std::size_t c, std::size_t i) {
    const std::size_t other = 1 - i;
    return log_ratio(ratio_of(seconds(c)[i], seconds(c)[other], seconds(0)[other]));
  };
  const auto as_it_was = [&work](std::size_t c) { return work.seconds(c); };
  const auto at_equal = [&work](std::size_t c) { return work.at_equal(c); };
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double equal = over_other(at_equal, c, i);
      const bool only_equal = slow[static_cast<std::size_t>(work.timings.ranks[i].value())] != 0;
      excess[c][i] = only_equal ? equal : std::min(over_other(as_it_was, c, i), equal);
    }
  }
  return excess;
}

// Returns the median rank's own work, or the faster one's of two, because the other may be slow.
double ordinary_seconds(const Work& work, const Medians& medians) {
  const std::span<const double> own = work.seconds(0);
  return own.size() == 2 ? std::min(own[0], own[1]) : medians[0];
}

}  // namespace

Excess excess_of(Timings timings, std::span<const RankSignal> signals, const StepSummary& summary,
                 const SampleFacts& samples, std::span<const double> reports,
                 std::span<const double> slow, OwnPast past) {
  const bool own_past = compares_with_own_past(reports.size());
  Work work =
      work_of(std::move(timings), signals, summary, samples, past.reference_samples, own_past);
  Excess excess;
  if (work.size() == 0) {
    excess.past = std::move(past);
    return excess;
  }
  excess.mean_samples = work.mean_samples;
  const Medians medians = medians_of(work, summary);
  excess.ordinary_seconds = ordinary_seconds(work, medians);
  if (own_past && work.size() == 2) excess.of_other = against_other(work, slow);
  if (work.size() >= (own_past ? 1 : 3)) {
    excess.of = own_past ? against_own_past(work, reports, slow, past)
                         : against_others(work, medians, slow);
    excess.ranks = std::move(work.timings.ranks);
  }
  excess.in_use = work.in_use;
  if (own_past) excess.in_use.fill(true);
  excess.past = std::move(past);
  return excess;
}

}  // namespace cox
