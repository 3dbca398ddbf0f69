#include "sdk/src/parallel/gradient_holders.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

std::shared_ptr<const GradientHolders::Holder> says(std::int64_t bytes) {
  return std::make_shared<const GradientHolders::Holder>([bytes](MicroBatches micro_batches) {
    GradientHolding held;
    held.resident_bytes = micro_batches == MicroBatches::several ? 2 * bytes : bytes;
    return held;
  });
}

std::int64_t bytes_held(const GradientHolders& holders,
                        MicroBatches micro_batches = MicroBatches::one) {
  return holders.held(micro_batches).resident_bytes;
}

}  // namespace

TEST_SUITE("gradient holders") {
  TEST_CASE("where nobody holds gradients they stay in .grad") {
    CHECK(bytes_held({}) == 0);
  }

  TEST_CASE("the newest that lives counts, whichever goes first") {
    GradientHolders holders;
    auto first = says(10);
    holders.add(first);
    CHECK(bytes_held(holders) == 10);
    CHECK(bytes_held(holders, MicroBatches::several) == 20);
    auto second = says(7);
    holders.add(second);
    CHECK(bytes_held(holders) == 7);
    first.reset();
    CHECK(bytes_held(holders) == 7);
    auto third = says(5);
    holders.add(third);
    third.reset();
    CHECK(bytes_held(holders) == 7);
    second.reset();
    CHECK(bytes_held(holders) == 0);
  }
}
