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
  ChannelColumns at_equal_samples;  // empty columns where samples were equal anyway
  bool is_whole = true;             // no rank was left out, so medians of the summary hold
  Flags in_use{};                   // false = no rank spent time there

  bool has_unequal_samples() const { return !at_equal_samples[0].empty(); }
};

constexpr bool grows_with_samples(Phase phase) {
  return phase != Phase::optimizer && phase != Phase::other;
}

ChannelColumns columns_of(Timings timings) {
  ChannelColumns seconds;
  seconds[0] = std::move(timings.own);
  for (std::size_t p = 0; p < kOwnPhases.size(); ++p) {
    seconds[1 + p] = std::move(timings.phases[static_cast<std::size_t>(kOwnPhases[p])]);
  }
  return seconds;
}

ChannelColumns scaled_to(double reference, const ChannelColumns& seconds,
                         std::span<const double> samples, double fixed_samples) {
  ChannelColumns scaled = seconds;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double factor = (reference + fixed_samples) / (samples[i] + fixed_samples);
    for (std::size_t p = 0; p < kOwnPhases.size(); ++p) {
      if (!grows_with_samples(kOwnPhases[p])) continue;
      double& phase = scaled[1 + p][i];
      const double before = std::exchange(phase, phase * factor);
      scaled[0][i] += phase - before;
    }
  }
  return scaled;
}

// Leaves out the ranks without samples.
Timings with_samples(const Timings& timings) {
  Timings kept;
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    if (!(timings.samples[i] > 0)) continue;
    kept.ranks.push_back(timings.ranks[i]);
    kept.own.push_back(timings.own[i]);
    kept.samples.push_back(timings.samples[i]);
    for (std::size_t p = 0; p < kPhases; ++p) kept.phases[p].push_back(timings.phases[p][i]);
  }
  return kept;
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

Work work_of(Timings timings, const StepSummary& summary, const SampleFacts& facts,
             double& reference, bool own_past) {
  Work work;
  for (std::size_t c = 0; c < kChannels; ++c) {
    const auto phase = c == 0 ? 0 : static_cast<std::size_t>(kOwnPhases[c - 1]);
    work.in_use[c] = (c == 0 ? summary.own_seconds : summary.phases[phase]).max > 0;
  }
  const auto has_none = [](double samples) { return !(samples > 0); };
  bool some_have_none = std::ranges::any_of(timings.samples, has_none);
  if (some_have_none && facts.by_plan) {
    timings = with_samples(timings);
    work.is_whole = some_have_none = false;
  }
  const std::vector<double> samples = std::move(timings.samples);
  work.ranks = std::move(timings.ranks);
  work.seconds = columns_of(std::move(timings));
  if (some_have_none || samples.empty()) return work;  // samples are nobody's count of work
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
  explicit MedianOfOthers(const std::vector<double>& values) {
    std::vector<double> sorted = values;
    std::ranges::sort(sorted);
    const std::size_t n = sorted.size();
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

// Few ranks: each against the others.
std::vector<double> expected_of_others(const std::vector<double>& seconds) {
  const MedianOfOthers median(seconds);
  std::vector<double> expected;
  for (const double value : seconds) expected.push_back(median.without(value));
  return expected;
}

ChannelColumns few_over_others(const ChannelColumns& seconds, const Flags& in_use) {
  ChannelColumns ratios;
  const std::vector<double> expected_own = expected_of_others(seconds[0]);
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!in_use[c]) continue;
    ratios[c] = expected_of_others(seconds[c]);
    for (std::size_t i = 0; i < ratios[c].size(); ++i) {
      ratios[c][i] = ratio_of(seconds[c][i], ratios[c][i], expected_own[i]);
    }
  }
  return ratios;
}

// Many ranks: all against the same.
std::vector<double> ratios_over(const std::vector<double>& seconds, double expected,
                                double expected_own) {
  std::vector<double> ratios(seconds.size(), 1.0);
  if (!(expected_own > 0)) return ratios;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    ratios[i] = 1 + (seconds[i] - expected) / expected_own;
  }
  return ratios;
}

// `known`: medians that are known already, or null.
ChannelColumns many_over_others(const ChannelColumns& seconds, const Flags& in_use,
                                const StepSummary* known) {
  const auto median = [&](std::size_t c) {
    if (known == nullptr) return median_of(seconds[c]);
    if (c == 0) return known->own_seconds.median;
    return known->phases[static_cast<std::size_t>(kOwnPhases[c - 1])].median;
  };
  ChannelColumns ratios;
  const double expected_own = median(0);
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!in_use[c]) continue;
    ratios[c] = ratios_over(seconds[c], c == 0 ? expected_own : median(c), expected_own);
  }
  return ratios;
}

// Ratios of a round in which each rank is compared with the others.
ChannelColumns over_others(const ChannelColumns& seconds, const Flags& in_use,
                           const StepSummary* known) {
  return seconds[0].size() < kLeaveOneOutBelow ? few_over_others(seconds, in_use)
                                               : many_over_others(seconds, in_use, known);
}

// Moves a baseline towards what was seen; outliers move it as far as a three-fold time would.
void learn_baseline(double& baseline, double seconds, double reports) {
  const double weight = std::max(1 / (reports + 1), 1 / kBaselineRounds);
  const double seen = reports > 0 ? std::min(seconds, 3 * baseline) : seconds;
  baseline += weight * (seen - baseline);
}

// One or two ranks. Of two only what the other did not suffer as well counts as excess. Baselines
// move towards this round, slowly, and not at all for ranks that are slow.
ChannelColumns over_own_past(const ChannelColumns& seconds, std::span<const RankId> ranks,
                             std::span<const double> reports, std::span<const double> slow,
                             ChannelColumns& baselines) {
  ChannelColumns excess;
  for (std::size_t c = kChannels; c-- > 0;) {  // the whole last: its baseline serves the phases
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(ranks[i].value());
      double& baseline = baselines[c][rank];
      const double ratio = ratio_of(seconds[c][i], baseline, baselines[0][rank]);
      excess[c].push_back(reports[rank] > 0 ? log_ratio(ratio) : 0.0);
      if (slow[rank] == 0) learn_baseline(baseline, seconds[c][i], reports[rank]);
    }
    if (ranks.size() < 2) continue;
    const double first = excess[c][0];
    excess[c][0] -= std::max(0.0, excess[c][1]);
    excess[c][1] -= std::max(0.0, first);
  }
  return excess;
}

// The lesser of both, and of slow ranks the one at equal samples.
void take_lesser(ChannelColumns& excess, const ChannelColumns& at_equal_samples,
                 std::span<const RankId> ranks, std::span<const double> slow) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < excess[c].size(); ++i) {
      const bool only_equal = slow[static_cast<std::size_t>(ranks[i].value())] != 0;
      const double other = at_equal_samples[c][i];
      excess[c][i] = only_equal ? other : std::min(excess[c][i], other);
    }
  }
}

ChannelColumns against_others(const Work& work, const StepSummary& summary,
                              std::span<const double> slow) {
  ChannelColumns excess =
      over_others(work.seconds, work.in_use, work.is_whole ? &summary : nullptr);
  if (work.has_unequal_samples()) {
    const ChannelColumns at_equal = over_others(work.at_equal_samples, work.in_use, nullptr);
    take_lesser(excess, at_equal, work.ranks, slow);
  }
  for (std::vector<double>& column : excess) {  // still ratios
    for (double& value : column) value = log_ratio(value);
  }
  return excess;
}

ChannelColumns against_own_past(const Work& work, std::span<const double> reports,
                                std::span<const double> slow, OwnPast& past) {
  const bool unequal = work.has_unequal_samples();
  ChannelColumns excess = over_own_past(work.seconds, work.ranks, reports, slow, past.seconds);
  const ChannelColumns at_equal = over_own_past(unequal ? work.at_equal_samples : work.seconds,
                                                work.ranks, reports, slow, past.at_equal_samples);
  take_lesser(excess, at_equal, work.ranks, slow);
  return excess;
}

}  // namespace

Excess excess_of(Timings timings, const StepSummary& summary, const SampleFacts& samples,
                 std::span<const double> reports, std::span<const double> slow, OwnPast past) {
  const bool own_past = compares_with_own_past(reports.size());
  Work work = work_of(std::move(timings), summary, samples, past.reference_samples, own_past);
  Excess excess;
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
