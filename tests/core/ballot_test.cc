#include "coordinator/core/ballot.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::StepBallot;

// Whole numbers, so that sums do not depend on their order.
StepBallot random_ballot(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  StepBallot b;
  b.loss_sum = static_cast<double>(below(1000));
  b.weight = static_cast<double>(below(100));
  b.samples = below(100);
  b.nonfinite_ranks = below(2);
  b.overflow_ranks = below(2);
  b.active_ranks = below(2);
  if (below(2) == 0) b.buffers_from_min = below(8);
  b.repeat_max = below(2);
  b.amax_max = static_cast<double>(below(9));
  b.plan_held_min = below(5);
  b.round_closed_min = below(2);
  b.mask_waits_max = below(2);
  b.mask_lane_min = static_cast<cox::MaskLane>(below(3));
  b.stop_max = below(2);
  b.fingerprint_min = b.fingerprint_max = below(3);
  b.arrival = {below(1000), below(10)};
  b.clocks_due_max = below(2);
  if (below(2) == 0) b.save_stage_min = below(3);
  b.save_failed_max = below(4);
  return b;
}

StepBallot folded(const std::vector<StepBallot>& ballots) {
  StepBallot all = ballots.front();
  for (std::size_t i = 1; i < ballots.size(); ++i) merge_into(all, ballots[i]);
  return all;
}

bool same_bits(const StepBallot& a, const StepBallot& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a merged ballot has sums, least and largest of all its parts") {
    StepBallot a, b;
    a.loss_sum = 2;
    b.loss_sum = 3;
    a.weight = b.weight = 4;
    a.samples = 5;
    b.samples = 6;
    a.nonfinite_ranks = 1;
    b.overflow_ranks = 1;
    a.active_ranks = b.active_ranks = 1;
    a.buffers_from_min = 3;
    b.buffers_from_min = 2;
    b.repeat_max = 1;
    a.amax_max = 7;
    b.amax_max = 8;
    a.plan_held_min = 9;
    b.plan_held_min = 10;
    a.round_closed_min = 1;
    b.mask_waits_max = 1;
    b.mask_lane_min = cox::MaskLane::failed;
    a.stop_max = 1;
    a.fingerprint_min = a.fingerprint_max = 11;
    b.fingerprint_min = b.fingerprint_max = 12;
    a.arrival = {14, 15};
    b.arrival = {13, 16};
    b.clocks_due_max = 1;
    merge_into(a, b);
    CHECK(a.arrival.at_ns == 14);
    CHECK(a.arrival.error_ns == 16);
    CHECK(a.clocks_due_max == 1);
    CHECK(a.loss_sum == 5);
    CHECK(a.weight == 8);
    CHECK(a.samples == 11);
    CHECK(a.nonfinite_ranks == 1);
    CHECK(a.overflow_ranks == 1);
    CHECK(a.active_ranks == 2);
    CHECK(a.buffers_from_min == 2);
    CHECK(a.repeat_max == 1);
    CHECK(a.amax_max == 8);
    CHECK(a.plan_held_min == 9);
    CHECK(a.round_closed_min == 0);
    CHECK(a.mask_waits_max == 1);
    CHECK(a.mask_lane_min == cox::MaskLane::failed);
    CHECK(a.stop_max == 1);
    CHECK(a.fingerprint_min == 11);
    CHECK(a.fingerprint_max == 12);
  }

  TEST_CASE("ranks that only join leave nobody active, and nobody's buffers are ~0") {
    StepBallot a, b;
    merge_into(a, b);
    CHECK(a.active_ranks == 0);
    CHECK(a.buffers_from_min == ~0ull);
    CHECK(a.repeat_max == 0);
    b.buffers_from_min = 0;
    merge_into(a, b);
    CHECK(a.buffers_from_min == 0);
  }

  TEST_CASE("a largest gradient that is no magnitude counts as not known") {
    for (const double wrong : {std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity(), -3.0}) {
      StepBallot a, b;
      a.amax_max = wrong;
      b.amax_max = 2;
      merge_into(a, b);
      CHECK(a.amax_max == 2);
      StepBallot c;
      c.amax_max = wrong;
      merge_into(a, c);
      CHECK(a.amax_max == 2);
    }
  }

  TEST_CASE("ballots of whole numbers merge to the same bits in any order and grouping") {
    std::mt19937_64 random(4);
    for (int round = 0; round < 200; ++round) {
      std::vector<StepBallot> ballots;
      for (auto n = 2 + random() % 6; n > 0; --n) ballots.push_back(random_ballot(random));
      const StepBallot expected = folded(ballots);
      const std::size_t half = ballots.size() / 2;
      const auto middle = ballots.begin() + static_cast<std::ptrdiff_t>(half);
      StepBallot left = folded({ballots.begin(), middle});
      merge_into(left, folded({middle, ballots.end()}));
      CHECK(same_bits(left, expected));
      std::shuffle(ballots.begin(), ballots.end(), random);
      CHECK(same_bits(folded(ballots), expected));
    }
  }
}
