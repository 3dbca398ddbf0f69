#include <torch/torch.h>

#include <chrono>
#include <string>
#include <thread>

#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Clock = std::chrono::steady_clock;

at::Tensor some_parameter() {
  return torch::ones({1000}).set_requires_grad(true);
}

}  // namespace

TEST_SUITE("report of a reduction") {
  TEST_CASE("buckets come with their bytes and times, those of an order just learned as well") {
    auto session = solo_session();
    const at::Tensor first = some_parameter();
    const at::Tensor second = some_parameter();
    Reducer reducer(session, {first, second});
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      first.mutable_grad().reset();
      second.mutable_grad().reset();
      auto step = session.step();
      reducer.backward(step, (first * second).sum(), 1);
      (void)reducer.average(step);
      const ReductionReport report = reducer.last_reduction();
      CHECK(report.backward_seconds > 0);
      REQUIRE_FALSE(report.buckets.empty());
      for (const BucketReport& bucket : report.buckets) {
        CHECK(bucket.bytes > 0);
        CHECK(bucket.started_seconds > 0);
        CHECK(bucket.done_seconds >= bucket.started_seconds);
        CHECK(bucket.worked_seconds >= 0);
      }
    }
    CHECK(std::string(reducer.path()) == "shared memory");
  }

  TEST_CASE(
      "a rank without a backward pass counts from where it said so, not from an earlier step") {
    auto session = solo_session();
    const at::Tensor parameter = some_parameter();
    Reducer reducer(session, {parameter});
    for (int i = 0; i < 3; ++i) {
      parameter.mutable_grad().reset();
      auto step = session.step();
      const bool has_samples = i == 0 || session.rank() == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const Clock::time_point before = Clock::now();
      if (has_samples || i == 2) reducer.backward(step, parameter.sum(), has_samples ? 1 : 0);
      (void)reducer.average(step);
      const std::chrono::duration<double> took = Clock::now() - before;
      const ReductionReport report = reducer.last_reduction();
      CHECK((report.backward_seconds > 0) == has_samples);
      REQUIRE(report.buckets.size() == 1);
      CHECK(report.buckets[0].started_seconds > 0);
      CHECK(report.buckets[0].done_seconds <= took.count());
      CHECK(report.exposed_seconds <= took.count());
    }
  }
}
