#include "coordinator/core/arrival.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// A node whose clock runs at `rate` times rank 0's, and started `ahead_ns` earlier.
struct Node {
  std::int64_t ahead_ns = 0;
  double rate = 1;
  std::int64_t clock(std::int64_t true_ns) const {
    return ahead_ns + static_cast<std::int64_t>(std::llround(rate * static_cast<double>(true_ns)));
  }
};

std::int64_t below(std::mt19937_64& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
}

// Exchanges that begin at `true_ns`. Messages take 5 to 400 us, differing in each direction.
ClockOffset compare(const Node& node, std::int64_t true_ns, int exchanges,
                    std::mt19937_64& random) {
  OffsetBounds bounds;
  for (int i = 0; i < exchanges; ++i) {
    const std::int64_t there = true_ns + 5'000 + below(random, 395'000);
    const std::int64_t back = there + 5'000 + below(random, 395'000);
    bounds.note({node.clock(true_ns), there, node.clock(back)});
    true_ns = back;
  }
  const auto offset = bounds.offset();
  REQUIRE(offset);
  return *offset;
}

double error_ns(const ArrivalStamp& stamp, std::int64_t true_ns) {
  return std::abs(static_cast<double>(static_cast<std::int64_t>(stamp.at_ns) - true_ns));
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE(
      "an offset that was planted lies within the stated error, which more exchanges narrow") {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 500; ++trial) {
      const Node node{below(random, 2000 * kSecond) - 1000 * kSecond, 1};
      std::uint64_t widest_of_one = 0;
      std::mt19937_64 same = random;
      widest_of_one = compare(node, 0, 1, same).error_ns;
      const ClockOffset found = compare(node, 0, 8, random);
      CHECK(std::abs(found.offset_ns + node.ahead_ns) <= static_cast<std::int64_t>(found.error_ns));
      CHECK(found.error_ns <= widest_of_one);
    }
  }

  TEST_CASE("exchanges that contradict each other give no offset") {
    OffsetBounds bounds;
    CHECK_FALSE(bounds.offset());
    bounds.note({100, 150, 200});
    REQUIRE(bounds.offset());
    bounds.note({300, 1000, 400});  // the clock was set in between
    CHECK_FALSE(bounds.offset());
  }

  TEST_CASE("a clock that runs too fast is followed within the stated error for an hour") {
    std::mt19937_64 random(2);
    for (const double parts_per_million : {-90.0, -20.0, 0.0, 3.0, 50.0, 99.0}) {
      CAPTURE(parts_per_million);
      const Node node{-7 * kSecond, 1 + parts_per_million * 1e-6};
      ClockModel model(ClockModel::Kind::compared);
      std::uint64_t largest = 0;
      int comparisons = 0;
      for (std::int64_t now = 0; now < 3600 * kSecond; now += kSecond / 4) {
        if (model.is_due(node.clock(now))) {
          const ClockOffset offset = compare(node, now, 8, random);
          model.note(node.clock(now), offset);
          ++comparisons;
        }
        const ArrivalStamp stamp = model.stamp(node.clock(now));
        REQUIRE(stamp.error_ns != ArrivalStamp::kUnknown);
        // Time that passes during a comparison counts for neither side.
        CHECK(error_ns(stamp, now) <= static_cast<double>(stamp.error_ns) + 1000);
        if (now > 300 * kSecond) largest = std::max(largest, stamp.error_ns);
      }
      CHECK(largest < 2'000'000);  // 2 ms of bound; the actual error is smaller
      CHECK(comparisons < 130);
    }
  }

  TEST_CASE(
      "clocks that were not compared say nothing, and clocks of one node need no comparison") {
    const ClockModel same;
    CHECK(same.stamp(42).at_ns == 42);
    CHECK(same.stamp(42).error_ns == 0);
    CHECK_FALSE(same.is_due(1'000 * kSecond));
    ClockModel other(ClockModel::Kind::compared);
    CHECK(other.is_due(0));
    CHECK(other.stamp(42).error_ns == ArrivalStamp::kUnknown);
    other.note(0, {5, 2});
    CHECK(other.stamp(0).at_ns == 5);
    CHECK_FALSE(other.is_due(kSecond / 2));
    CHECK(other.is_due(kSecond));
    other.forget();
    CHECK(other.stamp(42).error_ns == ArrivalStamp::kUnknown);
  }

  TEST_CASE("a rank waits from its own arrival to that of the last rank") {
    struct Row {
      ArrivalStamp mine;
      ArrivalStamp latest;
      std::optional<double> seconds;
    };
    const std::vector<Row> rows = {
        {{100, 0}, {100, 0}, 0.0},                            // this is the last rank
        {{1000, 0}, {2'000'001'000, 0}, 2.0},                 // one clock
        {{0, 400}, {1000, 500}, 1e-6},                        // more than both errors
        {{0, 500}, {1000, 500}, 0.0},                         // the first rank is uncertain
        {{2000, 10}, {1000, 10}, 0.0},                        // merged without this rank
        {{0, ArrivalStamp::kUnknown}, {5, 0}, std::nullopt},  // not compared on this rank
        {{0, 0}, {5, ArrivalStamp::kUnknown}, std::nullopt},  // not compared on the last rank
    };
    for (const Row& row : rows) {
      const auto found = waiting_seconds(row.mine, row.latest);
      REQUIRE(found.has_value() == row.seconds.has_value());
      if (found) CHECK(*found == doctest::Approx(*row.seconds));
    }
  }

  TEST_CASE(
      "planted offsets and skewed arrivals: each rank's waiting is the truth within the errors") {
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<ArrivalStamp> stamps;
      std::vector<std::int64_t> arrivals;
      ArrivalStamp latest;
      for (int rank = 0; rank < 6; ++rank) {
        const Node node{rank * 17 * kSecond, 1 + 1.9e-5 * rank};
        ClockModel model(rank == 0 ? ClockModel::Kind::same : ClockModel::Kind::compared);
        if (rank > 0) model.note(node.clock(kSecond), compare(node, kSecond, 8, random));
        arrivals.push_back(2 * kSecond + below(random, 50'000'000));
        stamps.push_back(rank == 0 ? model.stamp(arrivals.back())
                                   : model.stamp(node.clock(arrivals.back())));
        merge_into(latest, stamps.back());
      }
      const std::int64_t last = *std::max_element(arrivals.begin(), arrivals.end());
      for (std::size_t rank = 0; rank < stamps.size(); ++rank) {
        const auto waited = waiting_seconds(stamps[rank], latest);
        REQUIRE(waited);
        const double truth = static_cast<double>(last - arrivals[rank]) * 1e-9;
        const auto bound = static_cast<double>(stamps[rank].error_ns + latest.error_ns);
        // An undecided order counts as no wait, which may be wrong by twice both errors.
        const double most = *waited == 0 ? 2 * bound : bound;
        CHECK(std::abs(*waited - truth) <= most * 1e-9 + 1e-6);
      }
    }
  }
}
