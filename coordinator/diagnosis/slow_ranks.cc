#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "coordinator/diagnosis/own_rules.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kLeastExcess = 0.05;  // less is not worth a person's time
constexpr std::size_t kLeastStretch = 10;
constexpr double kDeviationOfMedian = 1.2533;  // of a median, by that of a mean (normal noise)
constexpr std::array<std::string_view, 6> kWork = {"data",    "forward",   "backward",
                                                   "compute", "optimizer", "other"};

// The lower of the two middle values where their number is even: half of the ranks may be slow.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// What the usual rank took in each step.
std::vector<double> usual_work(const RunView& view) {
  std::vector<double> out;
  std::vector<double> of_step(view.ranks.size());
  for (std::size_t s = 0; s < view.size(); ++s) {
    for (std::size_t r = 0; r < view.ranks.size(); ++r)
      of_step[r] = static_cast<double>(view.ranks[r].work[s]);
    out.push_back(lower_median(of_step));
  }
  return out;
}

// The stretch in which a rank was late by most: the largest sum of what it took beyond 2.5 %
// (Kadane). Whether it is late at all is for others to say.
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

std::vector<double> cut(const std::vector<float>& values, Stretch stretch) {
  return {values.begin() + static_cast<std::ptrdiff_t>(stretch.begin),
          values.begin() + static_cast<std::ptrdiff_t>(stretch.end)};
}

// Deviations that a rank must be late by: all ranks and all stretches of the run are looked at.
double least_deviations(const RunView& view) {
  const auto steps = static_cast<double>(view.size());
  const double tests = steps * steps * static_cast<double>(view.ranks.size());
  return std::sqrt(2 * std::log(tests / kFalseAlarms));
}

// The work phase in which the rank is behind the usual rank by most.
std::string slow_phase(const RunView& view, std::size_t rank, Stretch stretch) {
  std::string slowest;
  double most = 0;
  for (const std::string_view phase : kWork) {
    std::vector<double> middles;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      std::vector<double> values = view.column(r, view.run->ranks[r].phases, phase);
      for (double& value : values) value = is_absent(value) ? 0 : value;
      middles.push_back(median_of({values.begin() + static_cast<std::ptrdiff_t>(stretch.begin),
                                   values.begin() + static_cast<std::ptrdiff_t>(stretch.end)}));
    }
    const double excess = middles[rank] - lower_median(middles);
    if (excess > most) slowest = phase;
    most = std::max(most, excess);
  }
  return slowest;
}

// Whether the rank's median in its stretch is above the usual rank's by chance.
bool is_slow(const RunView& view, std::size_t rank, Stretch stretch, double& slowdown) {
  if (stretch.end - stretch.begin < std::max(kLeastStretch, view.size() / 20)) return false;
  std::vector<double> middles;
  for (const RankView& each : view.ranks) middles.push_back(median_of(cut(each.work, stretch)));
  const double usual = lower_median(middles);
  const std::vector<double> own = cut(view.ranks[rank].work, stretch);
  const double error =
      kDeviationOfMedian * robust_deviation(own) * std::sqrt(2 / static_cast<double>(own.size()));
  slowdown = usual > 0 ? middles[rank] / usual - 1 : 0;
  return slowdown >= kLeastExcess && middles[rank] - usual > least_deviations(view) * error;
}

}  // namespace

std::vector<SlowRank> slow_ranks(const RunView& view) {
  std::vector<SlowRank> out;
  if (view.ranks.size() < 2 || view.size() < kLeastSteps) return out;
  const std::vector<double> usual = usual_work(view);
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    const Stretch stretch = latest_stretch(view.ranks[r].work, usual);
    double slowdown = 0;
    if (is_slow(view, r, stretch, slowdown))
      out.push_back({r, stretch.begin, stretch.end, slowdown, slow_phase(view, r, stretch)});
  }
  return out;
}

}  // namespace cox::diagnosis
