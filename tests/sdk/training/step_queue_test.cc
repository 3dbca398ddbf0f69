#include "sdk/src/training/step_queue.h"

#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "coxswain/error.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::ShareRequest;
using cox::detail::StepQueue;

namespace {

class Counting final : public Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  Batch get(std::span<const std::int64_t> indices) const override {
    if (broken_) throw std::runtime_error("no such file");
    const std::vector<std::int64_t> numbers(indices.begin(), indices.end());
    const at::Tensor all = torch::tensor(numbers, at::kLong);
    return {short_by_ > 0 ? all.narrow(0, 0, all.numel() - short_by_) : all,
            {},
            static_cast<std::int64_t>(indices.size())};
  }
  bool broken_ = false;
  std::int64_t short_by_ = 0;  // rows
};

ShareRequest request_at(std::uint64_t cursor, std::span<const std::uint32_t> shares) {
  ShareRequest request;
  request.cursor = cursor;
  request.step_samples = 10;
  request.shares = shares;
  request.world_size = 2;
  return request;
}

SamplePlan plan_of(const Dataset& data) {
  return *SamplePlan::create({.size = data.size(), .global_batch = 10, .seed = 1});
}

const std::vector<std::uint32_t> kEven = {1, 1};
const std::vector<std::uint32_t> kUneven = {4, 1};

}  // namespace

TEST_SUITE("step queue") {
  TEST_CASE("each step has its samples, with and without prefetch") {
    for (const std::size_t ahead : {0u, 1u, 3u}) {
      const Counting data;
      const SamplePlan plan = plan_of(data);
      StepQueue queue(data, plan, ahead);
      std::uint64_t cursor = 0;
      for (int i = 0; i < 20; ++i) {
        const auto& step = queue.take(request_at(cursor, kEven));
        CHECK(step.share.slice.count == 5);
        const at::Tensor expected = torch::tensor(plan.indices(cursor, 0, 5), at::kLong);
        CHECK(torch::equal(step.batch.inputs, expected));
        cursor = step.share.step.next;
      }
    }
  }

  TEST_CASE("new shares are in force as many steps later as batches are got ahead") {
    for (const std::size_t ahead : {0u, 1u, 3u}) {
      const Counting data;
      StepQueue queue(data, plan_of(data), ahead);
      std::uint64_t cursor = 0;
      for (std::size_t i = 0; i < 10; ++i) {
        const auto& step = queue.take(request_at(cursor, i < 4 ? kEven : kUneven));
        CHECK(step.share.slice.count == (i < 4 + ahead ? 5 : 8));
        cursor = step.share.step.next;
      }
    }
  }

  TEST_CASE("the step just taken can be had again") {
    const Counting data;
    StepQueue queue(data, plan_of(data), 1);
    const at::Tensor first = queue.take(request_at(0, kEven)).batch.inputs;
    const auto& again = queue.take(request_at(0, kUneven));
    CHECK(again.batch.inputs.is_same(first));
    CHECK(again.share.slice.count == 5);
  }

  TEST_CASE("going back drops what was planned") {
    const Counting data;
    const SamplePlan plan = plan_of(data);
    StepQueue queue(data, plan, 2);
    std::uint64_t cursor = 0;
    for (int i = 0; i < 5; ++i) cursor = queue.take(request_at(cursor, kEven)).share.step.next;
    const auto& step = queue.take(request_at(20, kUneven));
    CHECK(step.share.slice.count == 8);
    CHECK(torch::equal(step.batch.inputs, torch::tensor(plan.indices(20, 0, 8), at::kLong)));
  }

  TEST_CASE("fewer rows than samples are an error with the shape") {
    Counting data;
    data.short_by_ = 2;
    StepQueue queue(data, plan_of(data), 0);
    try {
      queue.take(request_at(0, kEven));
      FAIL("rows are missing, and nobody said so");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("of 5 rows") != std::string::npos);
      CHECK(std::string(error.what()).find("shape [3]") != std::string::npos);
    }
  }

  TEST_CASE("what the data set throws comes out where the step is taken") {
    for (const std::size_t ahead : {0u, 2u}) {
      Counting data;
      data.broken_ = true;
      StepQueue queue(data, plan_of(data), ahead);
      CHECK_THROWS_WITH(queue.take(request_at(0, kEven)), "no such file");
    }
  }
}
