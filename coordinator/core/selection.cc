#include "coordinator/core/selection.h"

#include <algorithm>
#include <cmath>
#include <optional>
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

struct Bracket {
  double low = 0;
  double high = 0;
};

// Values that very likely have the wanted ones between them, from every n-th value: four standard
// deviations of the sample's own order statistics to either side.
Bracket bracket_of(std::span<const double> values, std::size_t k) {
  std::vector<double> sample(kSample);
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = values[i * values.size() / kSample];
  std::sort(sample.begin(), sample.end());
  const double fraction = static_cast<double>(k) / static_cast<double>(values.size());
  const double middle = fraction * kSample;
  const double margin = 4 * std::sqrt(kSample * fraction * (1 - fraction)) + 2;
  const auto first = static_cast<std::size_t>(std::max(0.0, middle - margin));
  const auto last = static_cast<std::size_t>(std::min(kSample - 1.0, middle + margin));
  return {sample[first], sample[last]};
}

// Nothing when the bracket missed, which its order of values can provoke and costs only time.
std::optional<Neighbours> select_within(std::span<const double> values, std::size_t k,
                                        Bracket bracket) {
  std::vector<double> inside(values.size());
  std::size_t below = 0;
  std::size_t count = 0;
  for (const double value : values) {
    below += value < bracket.low;
    inside[count] = value;
    count += value >= bracket.low && value <= bracket.high;
  }
  if (k < below || k + 1 >= below + count) return std::nullopt;
  return select_in_place(std::span(inside).first(count), k - below);
}

}  // namespace

Neighbours select(std::span<const double> values, std::size_t k) {
  if (values.size() >= kSampleFrom) {
    const std::optional<Neighbours> found = select_within(values, k, bracket_of(values, k));
    if (found) return *found;
  }
  std::vector<double> copy(values.begin(), values.end());
  return select_in_place(copy, k);
}

double median_of(std::span<const double> values) {
  const Neighbours middle = select(values, (values.size() - 1) / 2);
  return values.size() % 2 == 1 ? middle.lower : (middle.lower + middle.upper) / 2;
}

}  // namespace cox
