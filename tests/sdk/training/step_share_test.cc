#include <random>
#include <vector>

#include "sdk/src/training/step_queue.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::ShareRequest;
using cox::detail::StepShare;

namespace {

SamplePlan plan_of(std::int64_t size, std::int64_t batch) {
  return *SamplePlan::create({.size = size, .global_batch = batch, .seed = 3});
}

std::vector<StepShare> of_all_ranks(const SamplePlan& plan, ShareRequest request) {
  std::vector<StepShare> shares;
  for (std::int32_t r = 0; r < request.world_size; ++r) {
    request.rank = RankId(r);
    const auto share = cox::detail::share_of(plan, request);
    REQUIRE(share.ok());
    shares.push_back(*share);
  }
  return shares;
}

}  // namespace

TEST_SUITE("step share") {
  TEST_CASE("ranks have the whole batch between them, in order, in whole micro-batches") {
    std::mt19937_64 random(5);
    for (int round = 0; round < 2000; ++round) {
      const auto size = static_cast<std::int64_t>(1 + random() % 200);
      const SamplePlan plan = plan_of(size, 16);
      ShareRequest request;
      request.cursor = random() % 1000;
      request.step_samples = static_cast<std::int64_t>(1 + random() % 64);
      request.micro_batch = static_cast<std::int64_t>(random() % 6);
      request.world_size = static_cast<std::int32_t>(1 + random() % 8);
      std::vector<std::uint32_t> shares(static_cast<std::size_t>(request.world_size));
      for (auto& share : shares) share = static_cast<std::uint32_t>(random() % 5);
      shares[random() % shares.size()] += 1;
      if (random() % 4 != 0) request.shares = shares;

      const auto all = of_all_ranks(plan, request);
      std::int64_t next = 0;
      std::uint64_t number = 0;
      std::uint64_t most = 0;
      for (const StepShare& share : all) {
        CHECK(share.slice.first == next);
        next += share.slice.count;
        if (share.own_micro_batches > 0) CHECK(share.first_micro_batch == number);
        number += share.own_micro_batches;
        most = std::max(most, share.own_micro_batches);
        std::int64_t covered = 0;
        for (std::uint64_t i = 0; i < share.own_micro_batches; ++i) {
          const SampleSlice part = share.part(i);
          CHECK(part.first == covered);
          CHECK(part.count > 0);
          const std::int64_t at = share.slice.first + part.first;
          const bool is_tail = at + part.count == share.step.count;
          if (request.micro_batch > 0) CHECK((part.count == request.micro_batch || is_tail));
          if (request.micro_batch > 0) CHECK(at % request.micro_batch == 0);
          covered += part.count;
        }
        CHECK(covered == share.slice.count);
      }
      CHECK(next == all[0].step.count);
      CHECK(number == all[0].micro_batches);
      CHECK(most <= all[0].most_on_a_rank);
      if (request.micro_batch > 0) CHECK(most == all[0].most_on_a_rank);
    }
  }

  TEST_CASE("shares count in micro-batches") {
    const SamplePlan plan = plan_of(100, 16);
    const std::vector<std::uint32_t> shares = {1, 3};
    ShareRequest request;
    request.step_samples = 16;
    request.micro_batch = 4;
    request.shares = shares;
    request.world_size = 2;
    const auto all = of_all_ranks(plan, request);
    CHECK(all[0].slice.count == 4);
    CHECK(all[1].slice.count == 12);
    CHECK(all[1].first_micro_batch == 1);
    CHECK(all[1].own_micro_batches == 3);
  }

  TEST_CASE("a rank may have nothing to do") {
    const SamplePlan plan = plan_of(100, 16);
    ShareRequest request;
    request.step_samples = 2;
    request.micro_batch = 2;
    request.world_size = 4;
    const auto all = of_all_ranks(plan, request);
    CHECK(all[0].own_micro_batches == 1);
    for (int r = 1; r < 4; ++r) CHECK(all[static_cast<std::size_t>(r)].own_micro_batches == 0);
  }
}
