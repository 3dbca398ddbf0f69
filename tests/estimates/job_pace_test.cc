// The job as a whole against its own past.
#include "coordinator/estimates/job_pace.h"

#include <cmath>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

// A job whose ranks all take the same time, with noise correlated to the round before.
struct Pace {
  explicit Pace(std::uint64_t seed, double of_neighbours = 0)
      : random(seed), correlation(of_neighbours) {}

  const cox::JobPace& round(double seconds, std::uint64_t plan = 1) {
    const double fresh = std::sqrt(1 - correlation * correlation) * random.normal();
    noise = correlation * noise + fresh;
    const double own = seconds * std::exp(0.02 * noise);
    pace = cox::learn_pace(pace, {cox::RoundId(++number), plan, own, own, 7}, {});
    return pace;
  }

  cox::testing::Random random;
  double correlation;
  double noise = 0;
  std::uint64_t number = 0;
  cox::JobPace pace;
};

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a job that got slower is told since when and by how much, and when it is over") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      Pace job(seed);
      for (int i = 0; i < 100; ++i) job.round(0.1);
      REQUIRE_FALSE(job.pace.slow.has_value());
      for (int i = 0; i < 60; ++i) job.round(0.12);
      REQUIRE(job.pace.slow.has_value());
      CHECK(std::abs(static_cast<double>(job.pace.slow->since.value()) - 101) <= 3);
      CHECK(job.pace.slow->slowdown_ratio == doctest::Approx(1.2).epsilon(0.02));
      CHECK(job.pace.slow->slowdown_low < job.pace.slow->slowdown_ratio);
      for (int i = 0; i < 60; ++i) job.round(0.1);
      CHECK_FALSE(job.pace.slow.has_value());
    }
  }

  TEST_CASE("noise that comes in runs makes no slow job") {
    for (const double correlation : {0.0, 0.5, 0.9}) {
      Pace job(7, correlation);
      for (int i = 0; i < 20000; ++i) REQUIRE_FALSE(job.round(0.1).slow.has_value());
    }
  }

  TEST_CASE("a new plan begins a new past, because it may change the work") {
    Pace job(3);
    for (int i = 0; i < 100; ++i) job.round(0.1, 1);
    for (int i = 0; i < 200; ++i) REQUIRE_FALSE(job.round(0.15, 2).slow.has_value());
  }

  TEST_CASE("rounds without work and absurd rounds teach nothing") {
    Pace job(4);
    for (int i = 0; i < 100; ++i) job.round(0.1);
    const double baseline = job.pace.baseline;
    for (const double odd : {0.0, -1.0, 1e300, std::nan("")}) {
      CHECK(cox::learn_pace(job.pace, {cox::RoundId(101), 1, odd, odd, 7}, {}).baseline ==
            baseline);
    }
  }
}
