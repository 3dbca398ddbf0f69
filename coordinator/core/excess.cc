#include "coordinator/core/excess.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/portable_math.h"
#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr std::size_t kLeaveOneOutBelow = 64;  // from there on one rank does not move the median

using Flags = std::array<bool, kChannels>;

// ---- Work: the seconds of a round, by channel.

struct Work {
  std::vector<RankId> ranks;
  ChannelColumns seconds;
  ChannelColumns at_equal_samples;  // without rows where samples were equal anyway
  Flags as_reported{};              // true = its column is as in the summary, whose median holds
  Flags in_use{};                   // false = no rank spent time there
  double mean_samples = 0;          // 0 where some rank counts none

  bool has_unequal_samples() const { return !at_equal_samples.empty(); }
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

// Communication compares only where all ranks tell it from waiting. Where ranks outnumber cores
// none does: what a call takes after the last rank has arrived is the time until its peers get a
// core.
bool all_measure_waiting(const Timings& timings, std::span<const RankSignal> reports) {
  return std::ranges::all_of(timings.report, [&](std::uint32_t place) {
    return reports[place].has(SignalFlag::waiting_measured) &&
           !reports[place].has(SignalFlag::without_queueing);
  });
}

void add_seconds(std::span<double> to, double sign, std::span<const double> seconds) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += sign * seconds[i];
}

// Puts the seconds of the channels into `work`: own work without what memory actions cost by plan,
// and with a rank's own part of communication where it is known.
void take_seconds(const Timings& timings, bool has_communication, Work& work) {
  work.seconds = ChannelColumns(timings.own.size());
  std::ranges::copy(timings.own, work.seconds[0].begin());
  for (std::size_t p = 0; p < kOwnPhases.size(); ++p) {
    if (1 + p == kCommunication && !has_communication) continue;
    std::ranges::copy(timings.of(kOwnPhases[p]), work.seconds[1 + p].begin());
  }
  const auto is_spent = [](double seconds) { return seconds > 0; };
  if (std::ranges::any_of(timings.recompute, is_spent)) {
    add_seconds(work.seconds[kBackward], -1, timings.recompute);
    add_seconds(work.seconds[0], -1, timings.recompute);
    work.as_reported[0] = work.as_reported[kBackward] = false;
  }
  work.in_use[kCommunication] = work.in_use[kCommunication] && has_communication;
  if (!has_communication) return;
  add_seconds(work.seconds[kCommunication], -1, timings.waiting);
  add_seconds(work.seconds[0], 1, work.seconds[kCommunication]);
  work.as_reported[0] = work.as_reported[kCommunication] = false;
}

ChannelColumns scaled_to(double reference, const ChannelColumns& seconds,
                         std::span<const double> samples, double fixed_samples) {
  ChannelColumns scaled = seconds;
  const std::span<double> whole = scaled[0];
  for (std::size_t p = 0; p < kOwnPhases.size(); ++p) {
    if (!grows_with_samples(kOwnPhases[p])) continue;
    const std::span<double> phase = scaled[1 + p];
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const double factor = (reference + fixed_samples) / (samples[i] + fixed_samples);
      const double before = std::exchange(phase[i], phase[i] * factor);
      whole[i] += phase[i] - before;
    }
  }
  return scaled;
}

// Leaves out the ranks without samples.
void keep_with_samples(Timings& timings) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    if (!(timings.samples[i] > 0)) continue;
    timings.ranks[kept] = timings.ranks[i];
    timings.own[kept] = timings.own[i];
    timings.waiting[kept] = timings.waiting[i];
    timings.recompute[kept] = timings.recompute[i];
    timings.samples[kept] = timings.samples[i];
    for (std::size_t p = 0; p < kPhases; ++p) timings.phases[p][kept] = timings.phases[p][i];
    ++kept;
  }
  timings.ranks.resize(kept);
  timings.own.resize(kept);
  timings.waiting.resize(kept);
  timings.recompute.resize(kept);
  timings.samples.resize(kept);
  timings.phases.keep_rows(kept);
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Returns how many samples are "equal": those of the first round of a rank compared with its own
// past, else the mean of this one.
double equal_samples(std::span<const double> samples, double& reference, bool own_past) {
  const double mean = mean_of(samples);
  if (!own_past) return mean;
  if (!(reference > 0)) reference = mean;
  return reference;
}

// Where all ranks count tokens, a sample is one of mean length.
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
  const bool has_communication = all_measure_waiting(timings, reports);
  if (!own_past) count_by_tokens(reports, timings);
  const auto has_none = [](double samples) { return !(samples > 0); };
  bool some_have_none = std::ranges::any_of(timings.samples, has_none);
  if (some_have_none && facts.by_plan) {
    keep_with_samples(timings);
    work.as_reported.fill(false);
    some_have_none = false;
  }
  const std::vector<double>& samples = timings.samples;
  take_seconds(timings, has_communication, work);
  work.ranks = std::move(timings.ranks);
  if (some_have_none || samples.empty()) return work;  // samples are nobody's count of work
  work.mean_samples = mean_of(samples);
  const double equal = equal_samples(samples, reference, own_past);
  const auto is_equal = [equal](double of_rank) { return of_rank == equal; };
  if (std::ranges::all_of(samples, is_equal)) return work;
  work.at_equal_samples = scaled_to(equal, work.seconds, samples, facts.fixed_samples);
  return work;
}

// ---- Excess of a round, by channel.

// Returns an excess before its logarithm is taken: seconds against those expected of the channel,
// as a part of those expected of the whole; 1 where nothing is expected.
double ratio_of(double seconds, double expected, double expected_own) {
  return expected_own > 0 ? 1 + (seconds - expected) / expected_own : 1;
}

double log_ratio(double ratio) {
  return portable_log(std::min(std::max(ratio, 1e-3), 1e3));
}

// Medians of all values but one. Which of the few candidates it is depends only on the half that
// the value left out lies in.
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

// The functions below put ratios in the place of seconds, channel by channel; the whole comes last,
// because the phases are a part of it.

// Few ranks: each against the others.
void few_over_others(const Flags& in_use, ChannelColumns& seconds) {
  const MedianOfOthers own(seconds[0]);
  for (std::size_t c = kChannels; c-- > 0;) {
    if (!in_use[c]) continue;
    const MedianOfOthers others(seconds[c]);
    const std::span<double> column = seconds[c];
    for (std::size_t i = 0; i < column.size(); ++i) {
      const double of_rank = column[i];
      column[i] = ratio_of(of_rank, others.without(of_rank), own.without(seconds[0][i]));
    }
  }
}

// Many ranks: all against the same.
void ratios_over(double expected, double expected_own, std::span<double> seconds) {
  if (!(expected_own > 0)) {
    std::ranges::fill(seconds, 1.0);
    return;
  }
  for (double& value : seconds) value = 1 + (value - expected) / expected_own;
}

// `known`: the channels whose medians the summary has already.
void many_over_others(const Flags& in_use, const Flags& known, const StepSummary& summary,
                      ChannelColumns& seconds) {
  const auto median = [&](std::size_t c) {
    if (!known[c]) return median_of(seconds[c]);
    if (c == 0) return summary.own_seconds.median;
    return summary.phases[static_cast<std::size_t>(kOwnPhases[c - 1])].median;
  };
  const double expected_own = median(0);
  for (std::size_t c = kChannels; c-- > 0;) {
    if (in_use[c]) ratios_over(c == 0 ? expected_own : median(c), expected_own, seconds[c]);
  }
}

// Ratios of a round in which each rank is compared with the others, in the place of its seconds;
// channels that are not in use keep their zeros.
ChannelColumns over_others(ChannelColumns seconds, const Flags& in_use, const Flags& known,
                           const StepSummary& summary) {
  if (seconds.rows() < kLeaveOneOutBelow) {
    few_over_others(in_use, seconds);
  } else {
    many_over_others(in_use, known, summary, seconds);
  }
  return seconds;
}

// Moves a baseline towards what was seen; outliers move it as far as a three-fold time would.
void learn_baseline(double& baseline, double seconds, double reports) {
  const double weight = std::max(1 / (reports + 1), 1 / kBaselineRounds);
  const double seen = reports > 0 ? std::min(seconds, 3 * baseline) : seconds;
  baseline += weight * (seen - baseline);
}

// Of two ranks only what the other one did not suffer as well counts; of a rank that is slow, also
// what the other one gained: work that a plan made shorter for both is no recovery.
void compare_pair(std::span<double> pair, bool first_is_slow, bool second_is_slow) {
  const double first = pair[0];
  const double second = pair[1];
  pair[0] -= first_is_slow && !second_is_slow ? second : std::max(0.0, second);
  pair[1] -= second_is_slow && !first_is_slow ? first : std::max(0.0, first);
}

// One or two ranks. Baselines move towards this round, slowly, and not at all for ranks that are
// slow.
ChannelColumns over_own_past(const ChannelColumns& seconds, std::span<const RankId> ranks,
                             std::span<const double> reports, std::span<const double> slow,
                             ChannelColumns& baselines) {
  ChannelColumns excess(ranks.size());
  for (std::size_t c = kChannels; c-- > 0;) {  // the whole last: its baseline serves the phases
    const std::span<double> column = excess[c];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(ranks[i].value());
      double& baseline = baselines[c][rank];
      const double ratio = ratio_of(seconds[c][i], baseline, baselines[0][rank]);
      column[i] = reports[rank] > 0 ? log_ratio(ratio) : 0.0;
      if (slow[rank] == 0) learn_baseline(baseline, seconds[c][i], reports[rank]);
    }
    if (ranks.size() == 2) compare_pair(column, slow[0] == kSurelySlow, slow[1] == kSurelySlow);
  }
  return excess;
}

// Of two ranks the past of one that is slow moves as the other one's did, from `before`: that says
// what the same work takes by now.
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

// The lesser of both, and of ranks that are surely slow the one at equal samples.
void take_lesser(ChannelColumns& excess, const ChannelColumns& at_equal_samples,
                 std::span<const RankId> ranks, std::span<const double> slow) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    const std::span<double> column = excess[c];
    const std::span<const double> at_equal = at_equal_samples[c];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const bool only_equal = slow[static_cast<std::size_t>(ranks[i].value())] != 0;
      column[i] = only_equal ? at_equal[i] : std::min(column[i], at_equal[i]);
    }
  }
}

// Uses up the seconds of `work`.
ChannelColumns against_others(Work& work, const StepSummary& summary,
                              std::span<const double> slow) {
  const bool unequal = work.has_unequal_samples();
  ChannelColumns excess =
      over_others(std::move(work.seconds), work.in_use, work.as_reported, summary);
  if (unequal) {
    const ChannelColumns at_equal =
        over_others(std::move(work.at_equal_samples), work.in_use, Flags{}, summary);
    take_lesser(excess, at_equal, work.ranks, slow);
  }
  for (std::size_t c = 0; c < kChannels; ++c) {  // still ratios
    if (!work.in_use[c]) continue;
    for (double& value : excess[c]) value = log_ratio(value);
  }
  return excess;
}

ChannelColumns against_own_past(const Work& work, std::span<const double> reports,
                                std::span<const double> slow, OwnPast& past) {
  const bool unequal = work.has_unequal_samples();
  const ChannelColumns before = past.at_equal_samples;
  ChannelColumns excess = over_own_past(work.seconds, work.ranks, reports, slow, past.seconds);
  const ChannelColumns at_equal = over_own_past(unequal ? work.at_equal_samples : work.seconds,
                                                work.ranks, reports, slow, past.at_equal_samples);
  if (work.ranks.size() == 2) follow_other(slow, before, past);
  take_lesser(excess, at_equal, work.ranks, slow);
  return excess;
}

// Of two ranks, each against the other.
std::array<std::array<double, 2>, kChannels> against_other(const Work& work,
                                                           std::span<const double> slow) {
  std::array<std::array<double, 2>, kChannels> excess{};
  const ChannelColumns& at_equal =
      work.has_unequal_samples() ? work.at_equal_samples : work.seconds;
  const auto over_other = [](const ChannelColumns& seconds, std::size_t c, std::size_t i) {
    const std::size_t other = 1 - i;
    return log_ratio(ratio_of(seconds[c][i], seconds[c][other], seconds[0][other]));
  };
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < 2; ++i) {
      const double equal = over_other(at_equal, c, i);
      const bool only_equal = slow[static_cast<std::size_t>(work.ranks[i].value())] != 0;
      excess[c][i] = only_equal ? equal : std::min(over_other(work.seconds, c, i), equal);
    }
  }
  return excess;
}

// The median rank's, of two the faster one's: the other may be slow.
double ordinary_seconds(const Work& work, const StepSummary& summary) {
  const std::span<const double> own = work.seconds[0];
  if (own.size() == 2) return std::min(own[0], own[1]);
  return work.as_reported[0] ? summary.own_seconds.median : median_of(own);
}

}  // namespace

Excess excess_of(Timings timings, std::span<const RankSignal> signals, const StepSummary& summary,
                 const SampleFacts& samples, std::span<const double> reports,
                 std::span<const double> slow, OwnPast past) {
  const bool own_past = compares_with_own_past(reports.size());
  Work work =
      work_of(std::move(timings), signals, summary, samples, past.reference_samples, own_past);
  Excess excess;
  if (work.ranks.empty()) {
    excess.past = std::move(past);
    return excess;
  }
  excess.mean_samples = work.mean_samples;
  excess.ordinary_seconds = ordinary_seconds(work, summary);
  if (own_past && work.ranks.size() == 2) excess.of_other = against_other(work, slow);
  if (work.ranks.size() >= (own_past ? 1 : 3)) {
    excess.of = own_past ? against_own_past(work, reports, slow, past)
                         : against_others(work, summary, slow);
    excess.ranks = std::move(work.ranks);
  }
  excess.in_use = work.in_use;
  if (own_past) excess.in_use.fill(true);
  excess.past = std::move(past);
  return excess;
}

}  // namespace cox
