#include "coordinator/estimates/cusum.h"

#include <algorithm>
#include <cmath>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

double siegmund_run_length(double k, double h) {
  const double y = 2 * k * (h + 1.166);
  return (std::exp(y) - 1 - y) / (2 * k * k);
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("the threshold solves Siegmund's equation for the stated rate") {
    for (const double k : {0.25, 0.5, 0.81, 1.0}) {
      for (const double rate : {1e-3, 1e-6, 1e-9}) {
        CAPTURE(k);
        CAPTURE(rate);
        const double length = siegmund_run_length(k, cox::cusum_threshold(k, rate));
        CHECK(length * rate == doctest::Approx(1).epsilon(1e-6));
      }
    }
  }

  TEST_CASE("normal noise alarms no more often than stated, and not never") {
    for (const double k : {0.3, 0.6, 1.0}) {
      cox::testing::Random random(static_cast<std::uint64_t>(1000 * k));
      const double rate = 1e-3;
      const double h = cox::cusum_threshold(k, rate);
      double sum = 0;
      double alarms = 0;
      const int steps = 400000;
      for (int i = 0; i < steps; ++i) {
        sum = cox::cusum_step(sum, random.normal(), k);
        if (sum < h) continue;
        ++alarms;
        sum = 0;
      }
      CAPTURE(k);
      CHECK(alarms / steps < 1.25 * rate);
      CHECK(alarms / steps > 0.1 * rate);
    }
  }

  TEST_CASE("no three rounds make an alarm, however slow") {
    for (const double noise : {1e-6, 0.01, 0.03, 0.1, 1.0}) {
      const cox::CusumTest test = cox::make_cusum_test(0.05, noise, 1e-6);
      double sum = 0;
      for (int i = 0; i < 3; ++i) sum = cox::cusum_step(sum, 1e9, test.k);
      CAPTURE(noise);
      CHECK(sum < test.h);
    }
  }

  TEST_CASE("a clock without noise does not name half of what is worth naming") {
    const double shift = 0.05;
    const cox::CusumTest test = cox::make_cusum_test(shift, 0, 1e-6);
    double half = 0, whole = 0;
    for (int i = 0; i < 1000; ++i) {
      half = cox::cusum_step(half, 0.49 * shift / test.sigma, test.k);
      whole = cox::cusum_step(whole, shift / test.sigma, test.k);
    }
    CHECK(half == 0);
    CHECK(whole > test.h);
  }

  TEST_CASE("the rarity of a sum is the inverse of the threshold of a rate") {
    const double h = cox::cusum_threshold(0.8, 1e-6);
    CHECK(cox::cusum_rarity(h, 0.8) == doctest::Approx(6).epsilon(0.01));
  }
}
