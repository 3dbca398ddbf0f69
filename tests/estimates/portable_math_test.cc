#include "coordinator/estimates/portable_math.h"

#include <cmath>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

TEST_SUITE("core") {
  TEST_CASE("the portable logarithm agrees with the C library's") {
    cox::testing::Random random(5);
    for (int i = 0; i < 20000; ++i) {
      const double x = std::exp(80 * (random.uniform() - 0.5));
      const double expected = std::log(x);
      REQUIRE(std::fabs(cox::portable_log(x) - expected) <=
              2e-15 * std::fmax(1, std::fabs(expected)));
    }
    CHECK(cox::portable_log(1) == 0);
  }

  TEST_CASE("the portable exponential agrees with the C library's") {
    cox::testing::Random random(6);
    for (int i = 0; i < 20000; ++i) {
      const double x = 128 * (random.uniform() - 0.5);
      REQUIRE(cox::portable_exp(x) == doctest::Approx(std::exp(x)).epsilon(1e-12));
    }
    CHECK(cox::portable_exp(0) == 1);
  }
}
