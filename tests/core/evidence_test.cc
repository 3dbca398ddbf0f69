#include "coordinator/core/evidence.h"

#include <cmath>
#include <limits>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

// Noise in quarters, so that sums are exact.
cox::BlockEvidence random_evidence(cox::testing::Random& random) {
  cox::BlockEvidence e;
  e.overflow_forward = static_cast<std::uint32_t>(random.below(3));
  e.overflow_backward = static_cast<std::uint32_t>(random.below(3));
  e.saturated = static_cast<std::uint32_t>(random.below(3));
  e.underflow = static_cast<std::uint32_t>(random.bits());
  e.sampled = static_cast<std::uint32_t>(random.bits());
  for (cox::Magnitude* magnitude :
       {&e.activation, &e.gradient, &e.underflow_ratio, &e.saturated_ratio, &e.signal_over_noise}) {
    if (random.chance(0.2)) continue;
    magnitude->rank = cox::RankId(static_cast<std::int32_t>(random.below(6)));
    magnitude->value = static_cast<float>(random.below(4));
  }
  e.noise_sum = static_cast<float>(random.below(64)) / 4;
  e.noise_count = 1;
  if (e.has_overflow())
    e.rank_of_overflow = cox::RankId(static_cast<std::int32_t>(random.below(6)));
  return e;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("merging evidence does not depend on order or grouping") {
    cox::testing::Random random(7);
    for (int i = 0; i < 2000; ++i) {
      const cox::BlockEvidence a = random_evidence(random);
      const cox::BlockEvidence b = random_evidence(random);
      const cox::BlockEvidence c = random_evidence(random);
      REQUIRE(cox::merge(a, b) == cox::merge(b, a));
      REQUIRE(cox::merge(cox::merge(a, b), c) == cox::merge(a, cox::merge(b, c)));
    }
  }

  TEST_CASE("empty evidence changes nothing") {
    cox::testing::Random random(8);
    for (int i = 0; i < 200; ++i) {
      const cox::BlockEvidence a = random_evidence(random);
      REQUIRE(cox::merge(a, cox::BlockEvidence{}) == a);
    }
  }

  TEST_CASE("the largest magnitude is a finite one, and equal ones belong to the lowest rank") {
    cox::BlockEvidence a, b;
    a.gradient = {4, cox::RankId(5)};
    b.gradient = {std::numeric_limits<float>::infinity(), cox::RankId(1)};
    CHECK(cox::merge(a, b).gradient.rank == cox::RankId(5));
    b.gradient.value = 4;
    CHECK(cox::merge(a, b).gradient.rank == cox::RankId(1));
  }

  TEST_CASE("one bad rank among many is not diluted") {
    cox::BlockEvidence all;
    for (std::int32_t rank = 0; rank < 64; ++rank) {
      cox::BlockEvidence one;
      one.sampled = 1000;
      one.noise_sum = rank == 9 ? 0.125F : 8.0F;
      one.noise_count = 1;
      if (rank == 7) one.saturated = 40;
      if (rank == 5) one.underflow = 500;
      cox::merge_into(all, cox::with_own_ratios(one, cox::RankId(rank)));
    }
    CHECK(cox::worst_saturated_ratio(all) == doctest::Approx(0.04));
    CHECK(all.saturated_ratio.rank == cox::RankId(7));
    CHECK(cox::worst_underflow_ratio(all) == doctest::Approx(0.5));
    CHECK(all.underflow_ratio.rank == cox::RankId(5));
    CHECK(cox::least_noise_ratio(all).value() == doctest::Approx(0.125));
    CHECK(all.signal_over_noise.rank == cox::RankId(9));
  }

  TEST_CASE("lists of evidence merge block by block") {
    std::vector<cox::BlockEvidence> into(2), from(2);
    into[0].overflow_forward = 1;
    from[0].overflow_forward = 2;
    from[1].overflow_forward = 7;
    cox::merge_into(into, from);
    CHECK(into[0].overflow_forward == 3);
    CHECK(into[1].overflow_forward == 7);
  }

  TEST_CASE("a merged ballot has sums, the oldest plan held and the spread of fingerprints") {
    cox::StepBallot a, b;
    a.loss_sum = 3;
    a.weight = a.samples = 2;
    a.plan_held_min = 5;
    a.round_closed_min = 1;
    a.fingerprint_min = a.fingerprint_max = 10;
    b.loss_sum = 4;
    b.weight = b.samples = 1;
    b.nonfinite_ranks = 1;
    a.overflow_ranks = 2;
    b.overflow_ranks = 1;
    a.amax_max = 0.5;
    b.amax_max = 8;
    b.plan_held_min = 4;
    b.stop_max = 1;
    b.fingerprint_min = b.fingerprint_max = 11;
    cox::merge_into(a, b);
    CHECK(a.loss_sum == 7);
    CHECK(a.weight == 3);
    CHECK(a.samples == 3);
    CHECK(a.nonfinite_ranks == 1);
    CHECK(a.overflow_ranks == 3);
    CHECK(a.amax_max == 8);
    CHECK(a.plan_held_min == 4);
    CHECK(a.round_closed_min == 0);
    CHECK(a.stop_max == 1);
    CHECK(a.fingerprint_min != a.fingerprint_max);
  }

  TEST_CASE("a magnitude that is none never wins in a ballot") {
    for (const double odd : {std::nan(""), HUGE_VAL, -HUGE_VAL, -3.0}) {
      cox::StepBallot a, b;
      a.amax_max = 2;
      b.amax_max = odd;
      cox::merge_into(a, b);
      CHECK(a.amax_max == 2);
      cox::merge_into(b, a);
      CHECK(b.amax_max == 2);
    }
  }
}
