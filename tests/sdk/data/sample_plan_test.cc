#include "coxswain/sample_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::SampleBatch;
using cox::SamplePlan;
using cox::SamplePlanOptions;
using cox::Tail;
using Counts = std::vector<std::int64_t>;
using Weights = std::vector<std::uint32_t>;

SamplePlan plan_of(SamplePlanOptions options) {
  auto plan = SamplePlan::create(options);
  REQUIRE_MESSAGE(plan.ok(), plan.status().text());
  return *plan;
}

Counts assigned(std::int64_t count, const Weights& weights) {
  const auto counts = SamplePlan::assign(count, weights);
  REQUIRE_MESSAGE(counts.ok(), counts.status().text());
  return *counts;
}

// Returns the samples of all ranks for one batch. Each rank makes its own calls.
std::vector<std::int64_t> of_all_ranks(const SamplePlan& plan, const SampleBatch& batch,
                                       const Counts& counts) {
  std::vector<std::int64_t> samples;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const cox::SampleSlice slice = SamplePlan::slice(counts, rank);
    const auto mine = plan.indices(batch.cursor, slice.first, slice.count);
    REQUIRE(static_cast<std::int64_t>(mine.size()) == slice.count);
    samples.insert(samples.end(), mine.begin(), mine.end());
  }
  return samples;
}

bool is_permutation_of_all(std::vector<std::int64_t> samples, std::int64_t size) {
  std::sort(samples.begin(), samples.end());
  Counts all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return samples == all;
}

Weights random_weights(std::mt19937& random, std::size_t ranks) {
  Weights weights(ranks);
  for (std::uint32_t& weight : weights) weight = random() % 3 == 0 ? 0 : random() % 1000;
  weights[random() % ranks] = 1 + random() % 1000;
  return weights;
}

TEST_SUITE("sdk.data") {
  TEST_CASE("each epoch is a permutation of the data set, for every small size") {
    for (std::int64_t size = 1; size <= 300; ++size) {
      const SamplePlan plan = plan_of({.size = size, .global_batch = 7, .seed = 5});
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        CAPTURE(size);
        CHECK(is_permutation_of_all(plan.indices(epoch * static_cast<std::uint64_t>(size), 0, size),
                                    size));
      }
    }
  }

  TEST_CASE("the order depends on the seed and on the epoch, and on nothing else") {
    const SamplePlan plan = plan_of({.size = 1000, .global_batch = 10, .seed = 1});
    const SamplePlan same = plan_of({.size = 1000, .global_batch = 64, .seed = 1});
    const SamplePlan other = plan_of({.size = 1000, .global_batch = 10, .seed = 2});
    CHECK(plan.indices(0, 0, 1000) == same.indices(0, 0, 1000));
    CHECK(plan.indices(0, 0, 1000) != other.indices(0, 0, 1000));
    CHECK(plan.indices(0, 0, 1000) != plan.indices(1000, 0, 1000));
    CHECK(plan.indices(0, 0, 5) == Counts{24, 486, 668, 61, 31});  // frozen: resumes rely on it
  }

  TEST_CASE("a sample is as likely to come early as late") {
    // 4,000 epochs of 10 samples: each place holds sample number 3 in 400 +- 19 epochs (one
    // standard deviation).
    const SamplePlan plan = plan_of({.size = 10, .global_batch = 1, .seed = 11});
    std::vector<int> hits(10);
    for (std::uint64_t cursor = 0; cursor < 40'000; ++cursor) {
      if (plan.sample_at(cursor) == 3) ++hits[cursor % 10];
    }
    for (const int count : hits) {
      CHECK(count > 300);
      CHECK(count < 500);
    }
  }

  TEST_CASE("neighbours in the order are no neighbours in the data set") {
    const SamplePlan plan = plan_of({.size = 100'000, .global_batch = 1, .seed = 3});
    const auto order = plan.indices(0, 0, 100'000);
    int close = 0;
    for (std::size_t i = 1; i < order.size(); ++i) close += std::abs(order[i] - order[i - 1]) <= 50;
    CHECK(close < 200);  // about 100 are expected of a random order
  }

  TEST_CASE("a data set of 2^48 samples costs no more than a small one") {
    const std::int64_t size = std::int64_t{1} << 48;
    const SamplePlan plan = plan_of({.size = size, .global_batch = 1000, .seed = 9});
    std::set<std::int64_t> seen;
    for (const std::int64_t sample : plan.indices(12'345'678'901'234, 0, 1000)) {
      CHECK(sample >= 0);
      CHECK(sample < size);
      CHECK(seen.insert(sample).second);
    }
  }

  TEST_CASE("every sample is used exactly once an epoch, whatever shares and world sizes do") {
    std::mt19937 random(17);
    for (int round = 0; round < 200; ++round) {
      const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 500);
      const std::int64_t batch_size = 1 + static_cast<std::int64_t>(random() % 40);
      const SamplePlan plan = plan_of({.size = size, .global_batch = batch_size, .seed = random()});
      std::uint64_t cursor = 0;
      std::size_t ranks = 1 + random() % 8;
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<std::int64_t> used;
        while (plan.epoch_of(cursor) == epoch) {
          if (random() % 5 == 0) ranks = 1 + random() % 8;
          const SampleBatch batch = plan.batch_at(cursor);
          const Counts counts = assigned(batch.count, random_weights(random, ranks));
          const auto samples = of_all_ranks(plan, batch, counts);
          used.insert(used.end(), samples.begin(), samples.end());
          cursor = batch.next;
        }
        REQUIRE(is_permutation_of_all(used, size));
      }
    }
  }

  TEST_CASE("the samples of a batch and their order do not depend on the shares") {
    const SamplePlan plan = plan_of({.size = 100, .global_batch = 24, .seed = 4});
    const SampleBatch batch = plan.batch_at(48);
    const auto whole = plan.indices(batch.cursor, 0, batch.count);
    for (const Weights& weights :
         {Weights{1}, Weights{1, 1}, Weights{5, 0, 1}, Weights{0, 0, 7, 9}}) {
      CHECK(of_all_ranks(plan, batch, assigned(batch.count, weights)) == whole);
    }
  }

  TEST_CASE("batches do not cross the end of an epoch") {
    const SamplePlan keep = plan_of({.size = 10, .global_batch = 4});
    CHECK(keep.batch_at(8).count == 2);
    CHECK(keep.batch_at(8).next == 10);
    CHECK(keep.batch_at(10).count == 4);
    CHECK(plan_of({.size = 3, .global_batch = 8}).batch_at(0).count == 3);
    const SamplePlan drop = plan_of({.size = 10, .global_batch = 4, .tail = Tail::drop});
    CHECK(drop.batch_at(4).next == 8);
    CHECK(drop.batch_at(8).cursor == 10);
    CHECK(drop.batch_at(8).count == 4);
    CHECK(drop.batch_at(7).cursor == 10);
    CHECK(drop.batch_at(6).cursor == 6);
  }

  TEST_CASE("shares are rounded by largest remainder, lower ranks first") {
    struct Case {
      std::int64_t count;
      Weights weights;
      Counts expected;
    };
    const std::vector<Case> cases = {
        {8, {1, 1}, {4, 4}},
        {7, {1, 1}, {4, 3}},
        {10, {1, 1, 1}, {4, 3, 3}},
        {10, {3, 3, 4}, {3, 3, 4}},
        {10, {2, 5, 8}, {2, 3, 5}},
        {5, {0, 1, 0, 1}, {0, 3, 0, 2}},
        {1, {0, 0, 9}, {0, 0, 1}},
        {0, {1, 2}, {0, 0}},
        {2, {1, 1, 1, 1}, {1, 1, 0, 0}},
        {std::int64_t{1} << 31, {UINT32_MAX, UINT32_MAX}, {1 << 30, 1 << 30}},
    };
    for (const Case& c : cases) CHECK(assigned(c.count, c.weights) == c.expected);
  }

  TEST_CASE("assigned samples add up, stay within one of the exact share and spare idle ranks") {
    std::mt19937 random(23);
    for (int round = 0; round < 2000; ++round) {
      const Weights weights = random_weights(random, 1 + random() % 16);
      const auto count = static_cast<std::int64_t>(random() % 10'000);
      const Counts counts = assigned(count, weights);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      CHECK(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == count);
      for (std::size_t rank = 0; rank < weights.size(); ++rank) {
        const double exact = static_cast<double>(count) * weights[rank] / total;
        CHECK(static_cast<double>(counts[rank]) > exact - 1);
        CHECK(static_cast<double>(counts[rank]) < exact + 1);
        if (weights[rank] == 0) CHECK(counts[rank] == 0);
      }
    }
  }

  TEST_CASE("numbers out of range are refused") {
    const std::int64_t most = std::int64_t{1} << 48;
    const std::vector<SamplePlanOptions> bad = {
        {.size = 0, .global_batch = 1},
        {.size = -1, .global_batch = 1},
        {.size = most + 1, .global_batch = 1},
        {.size = 10, .global_batch = 0},
        {.size = 10, .global_batch = (std::int64_t{1} << 31) + 1},
        {.size = 10, .global_batch = 11, .tail = Tail::drop},
    };
    for (const SamplePlanOptions& options : bad) {
      CHECK(SamplePlan::create(options).status().code() == cox::StatusCode::invalid_argument);
    }
    CHECK_FALSE(SamplePlan::assign(4, Weights{0, 0}).ok());
    CHECK_FALSE(SamplePlan::assign(4, Weights{}).ok());
    CHECK_FALSE(SamplePlan::assign(-1, Weights{1}).ok());
  }
}

}  // namespace
