#include "coordinator/core/selection.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <memory>
#include <vector>

namespace cox {
namespace {

constexpr std::size_t kSampleFrom = 2048;  // values from which on sampling pays
constexpr std::size_t kSample = 512;

Neighbours select_in_place(std::span<double> values, std::size_t k) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(values.begin(), at, values.end());
  if (k + 1 == values.size()) return {*at, *at};
  return {*at, *std::min_element(at + 1, values.end())};
}

Neighbours select_in_copy(std::span<const double> values, std::size_t k) {
  std::vector<double> copy(values.begin(), values.end());
  return select_in_place(copy, k);
}

using Sample = std::array<double, kSample>;

// Every n-th value, sorted.
Sample sample_of(std::span<const double> values) {
  Sample sample;
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = values[i * values.size() / kSample];
  std::ranges::sort(sample);
  return sample;
}

// The values from low to high, of which the sample says that the k-th is very likely among them:
// three standard deviations of the sample's own order statistics to either side.
class Bracket {
 public:
  Bracket(const Sample& sample, std::span<const double> values, std::size_t k)
      : values_(values), k_(k), inside_(std::make_unique_for_overwrite<double[]>(values.size())) {
    const double fraction = static_cast<double>(k) / static_cast<double>(values.size());
    const double middle = fraction * kSample;
    const double margin = 3 * std::sqrt(kSample * fraction * (1 - fraction)) + 2;
    low_ = sample[static_cast<std::size_t>(std::max(0.0, middle - margin))];
    high_ = sample[static_cast<std::size_t>(std::min(kSample - 1.0, middle + margin))];
  }

  void see(double value) {
    const bool is_below = value < low_;
    below_ += is_below;
    inside_[count_] = value;
    count_ += (value <= high_) & !is_below;
  }

  // REQUIRES: all values were seen. An order of values can provoke that the bracket misses, which
  // costs only time.
  Neighbours selected() {
    if (k_ < below_ || k_ + 1 >= below_ + count_) return select_in_copy(values_, k_);
    return select_in_place({inside_.get(), count_}, k_ - below_);
  }

 private:
  std::span<const double> values_;
  std::size_t k_;
  double low_ = 0;
  double high_ = 0;
  std::size_t below_ = 0;
  std::size_t count_ = 0;
  std::unique_ptr<double[]> inside_;
};

double median_from(Neighbours middle, std::size_t count) {
  return count % 2 == 1 ? middle.lower : (middle.lower + middle.upper) / 2;
}

}  // namespace

Neighbours select(std::span<const double> values, std::size_t k) {
  assert(k < values.size());
  if (values.size() < kSampleFrom) return select_in_copy(values, k);
  Bracket bracket(sample_of(values), values, k);
  for (const double value : values) bracket.see(value);
  return bracket.selected();
}

TwoSelected select_two(std::span<const double> values, std::size_t first, std::size_t second) {
  assert(first <= second && second < values.size());
  if (values.size() < kSampleFrom) {
    return {select_in_copy(values, first), select_in_copy(values, second)};
  }
  const Sample sample = sample_of(values);
  Bracket low(sample, values, first);
  Bracket high(sample, values, second);
  for (const double value : values) {
    low.see(value);
    high.see(value);
  }
  return {low.selected(), high.selected()};
}

double median_of(std::span<const double> values) {
  assert(!values.empty());
  return median_from(select(values, (values.size() - 1) / 2), values.size());
}

MedianAndTail median_and_tail_of(std::span<const double> values) {
  const double position = 0.95 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const TwoSelected at = select_two(values, (values.size() - 1) / 2, below);
  const Neighbours tail = at.second;
  return {median_from(at.first, values.size()),
          tail.lower + (tail.upper - tail.lower) * (position - static_cast<double>(below))};
}

// Four of each at once, so that no comparison waits for the one before it.
Extremes extremes_of(std::span<const double> values) {
  constexpr std::size_t kLanes = 4;
  std::array<double, kLanes> low;
  std::array<double, kLanes> high;
  assert(!values.empty());
  low.fill(values[0]);
  high.fill(values[0]);
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      low[lane] = std::min(low[lane], values[i + lane]);
      high[lane] = std::max(high[lane], values[i + lane]);
    }
  }
  for (; i < values.size(); ++i) {
    low[0] = std::min(low[0], values[i]);
    high[0] = std::max(high[0], values[i]);
  }
  return {*std::ranges::min_element(low), *std::ranges::max_element(high)};
}

}  // namespace cox
