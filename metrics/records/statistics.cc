#include "metrics/records/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr std::size_t kSpikeWindow = 12;
constexpr std::size_t kSpikeHistory = 6;
constexpr double kSpikeDeviations = 6;
constexpr double kDeviationOfMad = 1.4826;

// The last finite values before the current one, at most kSpikeWindow, in order and sorted:
// millions of steps pass through.
class SpikeWindow {
 public:
  bool sticks_out(double value) const {
    if (size_ < kSpikeHistory) return false;
    const double middle = (sorted_[(size_ - 1) / 2] + sorted_[size_ / 2]) / 2;
    if (value <= middle) return false;
    const double deviation = median_distance(middle) * kDeviationOfMad;
    if (deviation > 0) return value > middle + kSpikeDeviations * deviation;
    return middle <= 0 || value > middle * 1.5;
  }
  void add(double value) {
    const auto begin = sorted_.begin();
    auto end = begin + static_cast<std::ptrdiff_t>(size_);
    if (size_ == kSpikeWindow) {
      const auto old = std::lower_bound(begin, end, values_[next_]);
      end = std::copy(old + 1, end, old);
    } else {
      ++size_;
    }
    const auto place = std::upper_bound(begin, end, value);
    std::copy_backward(place, end, end + 1);
    *place = value;
    values_[next_] = value;
    next_ = (next_ + 1) % kSpikeWindow;
  }

 private:
  // Merges half of two lists: distances grow away from the middle on both sides.
  double median_distance(double middle) const {
    std::size_t above = size_ / 2;
    std::size_t below = above;  // one past the next lower value
    double last = 0;
    double before = 0;
    for (std::size_t k = 0; k <= size_ / 2; ++k) {
      before = last;
      const double up =
          above < size_ ? sorted_[above] - middle : std::numeric_limits<double>::infinity();
      const double down =
          below > 0 ? middle - sorted_[below - 1] : std::numeric_limits<double>::infinity();
      last = std::min(up, down);
      up <= down ? ++above : --below;
    }
    return size_ % 2 == 1 ? last : (before + last) / 2;
  }

  std::array<double, kSpikeWindow> values_{};
  std::array<double, kSpikeWindow> sorted_{};
  std::size_t next_ = 0;
  std::size_t size_ = 0;
};

}  // namespace

void ExactSum::add(double term) {
  if (!std::isfinite(term)) {
    special_ += term;
    return;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    double part = parts_[i];
    if (std::fabs(term) < std::fabs(part)) std::swap(term, part);
    const double high = term + part;
    const double low = part - (high - term);
    if (low != 0) parts_[kept++] = low;
    term = high;
  }
  if (!std::isfinite(term)) {  // the sum exceeds the range of doubles
    special_ += term;
    size_ = 0;
    return;
  }
  parts_[kept++] = term;
  size_ = kept;
}

double ExactSum::value() const {
  if (special_ != 0 || std::isnan(special_)) return special_;
  if (size_ == 0) return 0;
  std::size_t i = size_ - 1;
  double high = parts_[i];
  double low = 0;
  while (i > 0 && low == 0) {
    const double above = high;
    const double part = parts_[--i];
    high = above + part;
    low = part - (high - above);
  }
  // A half-way case rounds by the sign of the next lower part.
  const bool is_half = i > 0 && ((low < 0 && parts_[i - 1] < 0) || (low > 0 && parts_[i - 1] > 0));
  if (!is_half) return high;
  const double twice = low * 2;
  const double rounded = high + twice;
  return rounded - high == twice ? rounded : high;
}

double exact_sum(std::span<const double> terms) {
  ExactSum sum;
  for (const double term : terms) sum.add(term);
  return sum.value();
}

double mean_of(std::span<const double> values) {
  return values.empty() ? 0 : exact_sum(values) / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double percentile_of(std::span<const double> sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const double part = at - std::floor(at);
  if (part == 0) return sorted[low];
  return sorted[low] * (1 - part) + sorted[low + 1] * part;
}

double robust_deviation(const std::vector<double>& values) {
  const double middle = median_of(values);
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) distances.push_back(std::fabs(value - middle));
  return kDeviationOfMad * median_of(std::move(distances));
}

std::vector<std::size_t> local_spikes(std::span<const double> values) {
  std::vector<std::size_t> spikes;
  SpikeWindow window;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;  // absent values are NaN, too
    if (window.sticks_out(values[i])) spikes.push_back(i);
    window.add(values[i]);
  }
  return spikes;
}

EndMedians end_medians(std::span<const double> values) {
  const std::size_t tenth = std::max<std::size_t>(1, values.size() / 10);
  const auto head = values.first(tenth);
  const auto tail = values.last(tenth);
  return {median_of({head.begin(), head.end()}), median_of({tail.begin(), tail.end()})};
}

}  // namespace cox::diagnosis
