#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kLeastExcess = 0.05;  // smaller slowdowns are not worth a person's time
constexpr std::size_t kLeastStretch = 10;
constexpr double kDeviationOfMedian =
    1.2533;  // standard error of a median / a mean's (normal noise)
constexpr std::array<std::string_view, 7> kPhases = {
    "data", "forward", "backward", "compute", "optimizer", "other", kRecomputePhase};

// Returns the lower of two middle values, because half of the ranks may be slow.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

// Returns the usual rank's work in each step.
std::vector<double> usual_work(const Work& work) {
  std::vector<double> out;
  std::vector<double> of_step(work.seconds.size());
  for (std::size_t s = 0; s < work.seconds[0].size(); ++s) {
    for (std::size_t r = 0; r < of_step.size(); ++r)
      of_step[r] = static_cast<double>(work.seconds[r][s]);
    out.push_back(lower_median(of_step));
  }
  return out;
}

// Returns the stretch in which a rank was latest: the largest sum of time beyond 2.5 % over the
// usual rank (Kadane). Callers decide whether the rank is slow.
Stretch latest_stretch(const std::vector<float>& work, const std::vector<double>& usual) {
  Stretch best;
  double most = 0;
  double sum = 0;
  std::size_t begin = 0;
  for (std::size_t s = 0; s < work.size(); ++s) {
    const double ratio = usual[s] > 0 ? static_cast<double>(work[s]) / usual[s] : 1;
    sum += std::clamp(ratio - 1, -0.5, 0.5) - kLeastExcess / 2;
    if (sum <= 0) {
      sum = 0;
      begin = s + 1;
    } else if (sum > most) {
      most = sum;
      best = {begin, s + 1};
    }
  }
  return best;
}

template <class Value>
std::vector<double> cut(const std::vector<Value>& values, Stretch stretch) {
  return {values.begin() + static_cast<std::ptrdiff_t>(stretch.begin),
          values.begin() + static_cast<std::ptrdiff_t>(stretch.end)};
}

// Returns the logarithm of the number of tests per false alarm. Every rank and every stretch of the
// run counts as a test.
double log_of_tests(const Work& work) {
  const auto steps = static_cast<double>(work.seconds[0].size());
  return std::log(steps * steps * static_cast<double>(work.seconds.size()) / kFalseAlarms);
}

// Returns a rank's seconds for a phase in each step. Time for saving memory is a phase of its own.
std::vector<double> seconds_of_phase(const RunView& view, const Work& work, std::size_t rank,
                                     std::string_view phase) {
  std::vector<double> recompute;
  if (phase == "backward" || phase == kRecomputePhase) recompute = view.recompute(rank);
  if (phase == kRecomputePhase) {
    if (work.without_recompute.contains(rank)) recompute.clear();
    recompute.resize(view.size(), 0);
    return recompute;
  }
  std::vector<double> values = view.column(rank, view.run->ranks[rank].phases, phase);
  for (double& value : values) value = is_absent(value) ? 0 : value;
  for (std::size_t s = 0; s < recompute.size(); ++s) values[s] -= recompute[s];
  return values;
}

// Caches all ranks' medians in the newest stretch. Ranks that are always slow share a stretch, and
// a quarter of many ranks may be slow.
class StretchMedians {
 public:
  StretchMedians(const RunView& view, const Work& work) : view_(view), work_(work) {}

  // Returns the medians of the ranks' work.
  const std::vector<double>& of_work(Stretch stretch) {
    turn_to(stretch);
    for (std::size_t r = of_work_.size(); r < work_.seconds.size(); ++r)
      of_work_.push_back(median_of(cut(work_.seconds[r], stretch)));
    return of_work_;
  }
  // Returns the medians of the ranks' times for a phase.
  const std::vector<double>& of_phase(std::size_t phase, Stretch stretch) {
    turn_to(stretch);
    std::vector<double>& out = of_phase_[phase];
    for (std::size_t r = out.size(); r < view_.ranks.size(); ++r)
      out.push_back(median_of(cut(seconds_of_phase(view_, work_, r, kPhases[phase]), stretch)));
    return out;
  }

 private:
  void turn_to(Stretch stretch) {
    if (stretch == stretch_) return;
    stretch_ = stretch;
    of_work_.clear();
    for (auto& medians : of_phase_) medians.clear();
  }

  const RunView& view_;
  const Work& work_;
  Stretch stretch_;
  std::vector<double> of_work_;
  std::array<std::vector<double>, kPhases.size()> of_phase_;
};

// Returns the work phase with the largest delay against the usual rank.
std::string slow_phase(StretchMedians& medians, std::size_t rank, Stretch stretch) {
  std::string slowest;
  double most = 0;
  for (std::size_t p = 0; p < kPhases.size(); ++p) {
    const std::vector<double>& middles = medians.of_phase(p, stretch);
    const double excess = middles[rank] - lower_median(middles);
    if (excess > most) slowest = kPhases[p];
    most = std::max(most, excess);
  }
  return slowest;
}

// Returns the sum over all ranks for each step.
std::vector<double> sums_of(const Work& work) {
  std::vector<double> out(work.seconds[0].size(), 0);
  for (const std::vector<float>& rank : work.seconds) {
    for (std::size_t s = 0; s < out.size(); ++s) out[s] += static_cast<double>(rank[s]);
  }
  return out;
}

// Returns a rank's work divided by the mean of the others' in each step. The ratio removes causes
// that make a step long for all ranks.
std::vector<double> beside_others(const Work& work, const std::vector<double>& sums,
                                  std::size_t rank) {
  const auto others = static_cast<double>(work.seconds.size() - 1);
  std::vector<double> out;
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const auto own = static_cast<double>(work.seconds[rank][s]);
    const double rest = sums[s] - own;
    out.push_back(rest > 0 ? own * others / rest : 1);
  }
  return out;
}

// Returns the deviation of changes over so many steps. One lasting change does not affect it.
double deviation_of_moves(const std::vector<double>& values, std::size_t steps) {
  std::vector<double> moves;
  for (std::size_t s = steps; s < values.size(); ++s)
    moves.push_back(values[s] - values[s - steps]);
  return robust_deviation(moves);
}

// Returns the correlation of neighbouring steps, mean over the ranks; 0 for independent steps. In
// an AR(1) series with correlation r, changes over two steps have 1 + r times the variance of
// changes over one step.
double correlation_of_steps(const Work& work, const std::vector<double>& sums) {
  constexpr double kMost = 0.9;
  double sum = 0;
  std::size_t ranks = 0;
  for (std::size_t r = 0; r < work.seconds.size(); ++r) {
    const std::vector<double> values = beside_others(work, sums, r);
    const double one = deviation_of_moves(values, 1);
    if (!(one > 0)) continue;
    const double ratio = deviation_of_moves(values, 2) / one;
    sum += ratio * ratio - 1;
    ++ranks;
  }
  return ranks > 0 ? std::clamp(sum / static_cast<double>(ranks), 0.0, kMost) : 0;
}

// Returns the standard error of the rank's median in its stretch, divided by the median. Uses the
// changes of the whole run, too, because a few steps may be alike by chance.
double error_of_median(const std::vector<double>& values, Stretch stretch, double correlation) {
  const std::vector<double> own = cut(values, stretch);
  const double of_moves = deviation_of_moves(values, 1) / std::sqrt(2 * (1 - correlation));
  const double deviation = std::max(robust_deviation(own), of_moves);
  const auto steps = static_cast<double>(own.size());
  const double independent = steps * (1 - correlation) / (1 + correlation);
  const double middle = median_of(own);
  return middle > 0 ? kDeviationOfMedian * deviation / middle / std::sqrt(independent) : 0;
}

// A rank's delay against the usual rank in a stretch of its work.
struct Slowness {
  double slowdown = 0;
  double own_seconds = 0;    // median
  double usual_seconds = 0;  // lower median of the ranks' medians
};

Slowness slowness_in(StretchMedians& medians, std::size_t rank, Stretch stretch) {
  const std::vector<double>& middles = medians.of_work(stretch);
  Slowness out{0, middles[rank], lower_median(middles)};
  if (out.usual_seconds > 0) out.slowdown = out.own_seconds / out.usual_seconds - 1;
  return out;
}

// Steps in which a rank takes twice as long as the usual one, and the number of runs of such steps.
struct LongSteps {
  double steps = 0;
  double runs = 0;
};

class TwiceAsLong {
 public:
  TwiceAsLong(const Work& work, const std::vector<double>& usual) {
    constexpr double kTimes = 2;
    for (const std::vector<float>& rank : work.seconds) {
      std::vector<bool>& of_rank = is_so_.emplace_back();
      for (std::size_t s = 0; s < usual.size(); ++s)
        of_rank.push_back(usual[s] > 0 && static_cast<double>(rank[s]) >= kTimes * usual[s]);
      const LongSteps found = in(is_so_.size() - 1, {0, usual.size()});
      all_.steps += found.steps;
      all_.runs += found.runs;
    }
  }

  double rows() const { return static_cast<double>(is_so_.size() * is_so_[0].size()); }
  LongSteps all() const { return all_; }  // all ranks together
  LongSteps in(std::size_t rank, Stretch stretch) const {
    LongSteps out;
    for (std::size_t s = stretch.begin; s < stretch.end; ++s) {
      if (!is_so_[rank][s]) continue;
      ++out.steps;
      out.runs += s == stretch.begin || !is_so_[rank][s - 1] ? 1 : 0;
    }
    return out;
  }

 private:
  std::vector<std::vector<bool>> is_so_;  // twice as long: [rank][step]
  LongSteps all_;
};

// Returns whether a rank takes twice as long in nine steps of ten, beyond chance. This test works
// for short work, whose noise may be as large as the rank's own time.
//
// The other steps give the rate at which a step takes twice as long by chance, and the mean number
// of such steps in a row. The relative entropy times the number of independent steps bounds the
// logarithm of the probability (Chernoff).
bool is_plainly_slow(const TwiceAsLong& twice, std::size_t rank, Stretch stretch,
                     double log_tests) {
  constexpr double kMost = 0.9;  // share of the steps
  const auto steps = static_cast<double>(stretch.end - stretch.begin);
  const LongSteps own = twice.in(rank, stretch);
  if (own.steps < kMost * steps) return false;
  const double others = twice.all().steps - own.steps;
  const double chance = (others + 1) / (twice.rows() - steps + 2);
  if (chance >= kMost) return false;
  const double in_a_row = (others + 1) / std::max(1.0, twice.all().runs - own.runs + 1);
  const double entropy =
      kMost * std::log(kMost / chance) + (1 - kMost) * std::log((1 - kMost) / (1 - chance));
  return steps / in_a_row * entropy > log_tests;
}

bool is_long(const Work& work, Stretch stretch) {
  return stretch.end - stretch.begin >= std::max(kLeastStretch, work.seconds[0].size() / 20);
}

}  // namespace

Work work_of(const RunView& view, Ranks without_recompute) {
  Work out;
  for (const RankView& rank : view.ranks) out.seconds.push_back(rank.work);
  for (const std::size_t r : without_recompute) {
    const std::vector<double> recompute = view.recompute(r);
    for (std::size_t s = 0; s < recompute.size(); ++s)
      out.seconds[r][s] -= static_cast<float>(recompute[s]);
  }
  out.without_recompute = std::move(without_recompute);
  return out;
}

// A rank is slow if its median in its stretch exceeds the usual rank's by more than chance.
std::vector<SlowRank> slow_ranks(const RunView& view, const Work& work) {
  std::vector<SlowRank> out;
  if (view.ranks.size() < 2 || view.size() < kLeastSteps) return out;
  const std::vector<double> usual = usual_work(work);
  const std::vector<double> sums = sums_of(work);
  const double correlation = correlation_of_steps(work, sums);
  const double log_tests = log_of_tests(work);
  const TwiceAsLong twice(work, usual);
  StretchMedians medians(view, work);
  for (std::size_t r = 0; r < work.seconds.size(); ++r) {
    const Stretch stretch = latest_stretch(work.seconds[r], usual);
    if (!is_long(work, stretch)) continue;
    const Slowness slow = slowness_in(medians, r, stretch);
    if (slow.slowdown < kLeastExcess) continue;
    const double error =
        slow.own_seconds * error_of_median(beside_others(work, sums, r), stretch, correlation);
    if (slow.own_seconds - slow.usual_seconds > std::sqrt(2 * log_tests) * error ||
        is_plainly_slow(twice, r, stretch, log_tests))
      out.push_back(
          {r, stretch.begin, stretch.end, slow.slowdown, slow_phase(medians, r, stretch)});
  }
  return out;
}

}  // namespace cox::diagnosis
