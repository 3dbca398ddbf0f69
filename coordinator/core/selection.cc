#include "coordinator/core/selection.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace cox {
namespace {

constexpr std::size_t kSampleFrom = 2048;  // number of values from which on sampling is faster
constexpr std::size_t kSample = 512;
constexpr std::size_t kFew = 48;    // number of values for which narrowing does not help
constexpr int kNarrowings = 64;     // nearly always two or three
constexpr std::size_t kPivots = 9;  // candidates for a pivot

// Returns a value near the k-th.
double pivot_of(std::span<const double> values, std::size_t k) {
  std::array<double, kPivots> some;
  for (std::size_t i = 0; i < kPivots; ++i) some[i] = values[i * values.size() / kPivots];
  std::ranges::sort(some);
  return some[k * kPivots / values.size()];
}

// `above`: a value above all of `values`. Without one, the k-th itself is the upper neighbour.
Neighbours select_few(std::span<double> values, std::size_t k, std::optional<double> above) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(values.begin(), at, values.end());
  if (k + 1 == values.size()) return {*at, above.value_or(*at)};
  return {*at, *std::min_element(at + 1, values.end())};
}

// Overwrites `values`; `room` is as large. Drops values on the wrong side of a pivot until few are
// left, by loops without a branch: a processor mispredicts half of the branches of a comparison
// sort.
Neighbours select_in_place(std::span<double> values, std::span<double> room, std::size_t k) {
  std::optional<double> above;
  for (int i = 0; i < kNarrowings && values.size() > kFew; ++i) {
    const double pivot = pivot_of(values, k);
    std::size_t less = 0;
    std::size_t greater = 0;
    for (const double value : values) {
      values[less] = value;  // behind the values already read
      room[greater] = value;
      less += value < pivot;
      greater += value > pivot;
    }
    const std::size_t not_greater = values.size() - greater;
    if (k < less) {
      above = pivot;
      values = values.first(less);
    } else if (k >= not_greater) {
      k -= not_greater;
      std::swap(values, room);
      values = values.first(greater);
    } else {
      if (k + 1 < not_greater) return {pivot, pivot};
      return {pivot, greater > 0 ? extremes_of(room.first(greater)).min : above.value_or(pivot)};
    }
  }
  return select_few(values, k, above);
}

Neighbours select_in_copy(std::span<const double> values, std::size_t k) {
  if (values.size() <= kFew) {
    std::array<double, kFew> few;
    std::ranges::copy(values, few.begin());
    return select_few(std::span(few).first(values.size()), k, std::nullopt);
  }
  std::vector<double> copy(values.begin(), values.end());
  std::vector<double> room(values.size());
  return select_in_place(copy, room, k);
}

using Sample = std::array<double, kSample>;

// Returns every n-th value.
Sample sample_of(std::span<const double> values) {
  Sample sample;
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = values[i * values.size() / kSample];
  return sample;
}

// The values from low to high, which very likely include the k-th according to the sample: three
// standard deviations of the sample's own order statistics to either side.
class Bracket {
 public:
  // Changes the order of the sample.
  Bracket(Sample& sample, std::span<const double> values, std::size_t k)
      : values_(values), k_(k), inside_(std::make_unique_for_overwrite<double[]>(values.size())) {
    const double fraction = static_cast<double>(k) / static_cast<double>(values.size());
    const double middle = fraction * kSample;
    const double margin = 3 * std::sqrt(kSample * fraction * (1 - fraction)) + 2;
    const auto low = sample.begin() + static_cast<std::ptrdiff_t>(std::max(0.0, middle - margin));
    const auto high =
        sample.begin() + static_cast<std::ptrdiff_t>(std::min(kSample - 1.0, middle + margin));
    std::nth_element(sample.begin(), low, sample.end());
    std::nth_element(low, high, sample.end());
    low_ = *low;
    high_ = *high;
  }

  void see(double value) {
    const bool is_below = value < low_;
    below_ += is_below;
    inside_[count_] = value;
    count_ += (value <= high_) & !is_below;
  }

  // REQUIRES: all values were seen. For some orders of values the bracket misses, which costs only
  // time.
  Neighbours selected() {
    if (k_ < below_ || k_ + 1 >= below_ + count_) return select_in_copy(values_, k_);
    const auto room = std::make_unique_for_overwrite<double[]>(count_);
    return select_in_place({inside_.get(), count_}, {room.get(), count_}, k_ - below_);
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
  Sample sample = sample_of(values);
  Bracket bracket(sample, values, k);
  for (const double value : values) bracket.see(value);
  return bracket.selected();
}

TwoSelected select_two(std::span<const double> values, std::size_t first, std::size_t second) {
  assert(first <= second && second < values.size());
  if (values.size() < kSampleFrom) {
    return {select_in_copy(values, first), select_in_copy(values, second)};
  }
  Sample sample = sample_of(values);
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

// Four of each at once, so that no comparison waits for the one before.
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
