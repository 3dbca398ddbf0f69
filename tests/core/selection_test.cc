#include "coordinator/core/selection.h"

#include <algorithm>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::testing::Random;
using Values = std::vector<double>;

// Draws few different values, many, one far from the others, ascending, or all equal.
Values draw(std::size_t n, std::uint64_t kind, Random& random) {
  Values values(n);
  for (double& value : values) {
    value = kind == 0 ? static_cast<double>(random.below(5)) : random.uniform();
  }
  if (kind == 2) values[random.below(n)] = 1e9;
  if (kind == 3) std::sort(values.begin(), values.end());
  if (kind == 4) values.assign(n, 0.25);
  return values;
}

// Returns values of which a sample of every n-th sees only large ones; the others are small.
Values hidden_from_samples(std::size_t n) {
  Values values(n, 1);
  for (std::size_t i = 0; i < n; i += n / 512) values[i] = 2 + static_cast<double>(i);
  return values;
}

void check_against_sorting(const Values& values, Random& random) {
  Values sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const auto is_at = [&](const cox::Neighbours& found, std::size_t k) {
    return found.lower == sorted[k] && found.upper == sorted[std::min(k + 1, n - 1)];
  };
  const std::size_t a = random.below(n);
  const std::size_t b = random.below(n);
  CAPTURE(n);
  REQUIRE(is_at(cox::select(values, a), a));
  const cox::TwoSelected both = cox::select_two(values, std::min(a, b), std::max(a, b));
  REQUIRE(is_at(both.first, std::min(a, b)));
  REQUIRE(is_at(both.second, std::max(a, b)));
  const double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  REQUIRE(cox::median_of(values) == median);
  const double position = 0.95 * static_cast<double>(n - 1);
  const auto below = static_cast<std::size_t>(position);
  const double above = sorted[std::min(below + 1, n - 1)];
  const cox::MedianAndTail found = cox::median_and_tail_of(values);
  REQUIRE(found.median == median);
  REQUIRE(found.p95 ==
          sorted[below] + (above - sorted[below]) * (position - static_cast<double>(below)));
  REQUIRE(cox::extremes_of(values).min == sorted.front());
  REQUIRE(cox::extremes_of(values).max == sorted.back());
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("what is selected is what sorting puts there, from one value to thousands") {
    Random random(21);
    for (std::uint64_t kind = 0; kind < 5; ++kind) {
      for (std::size_t n = 1; n < 40; ++n) check_against_sorting(draw(n, kind, random), random);
      for (const std::size_t n : {48u, 49u, 300u, 1024u, 2047u, 2048u, 2049u, 5003u, 16384u}) {
        for (int run = 0; run < 5; ++run) {
          check_against_sorting(draw(n, kind, random), random);
        }
      }
    }
  }

  TEST_CASE("a sample that misleads costs time and nothing else") {
    Random random(22);
    for (int run = 0; run < 10; ++run) {
      check_against_sorting(hidden_from_samples(8192), random);
    }
  }
}
