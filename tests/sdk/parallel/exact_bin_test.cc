#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

#include "sdk/src/parallel/exact_sum.h"

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

// Runs steps whose largest magnitude is amax_of(step). Returns how many were repeated.
int repeats_in(int steps, const std::function<double(int)>& amax_of) {
  constexpr std::uint64_t kMicroBatches = 8;
  ExactBin bin = first_bin(kMicroBatches);
  int repeats = 0;
  for (int step = 0; step < steps; ++step) {
    const double amax = amax_of(step);
    const at::Tensor gradient = torch::tensor({amax, -amax / 3}, at::kFloat);
    std::vector<double> sums(2, 0.0);
    Deposit seen = deposit(gradient, 1, bin, sums);
    for (; !seen.fits; ++repeats) {
      REQUIRE(repeats <= 2 * steps);
      bin = next_bin(bin, seen.amax, kMicroBatches);
      sums.assign(2, 0.0);
      seen = deposit(gradient, 1, bin, sums);
    }
    CHECK(sums[0] == doctest::Approx(gradient[0].item<double>()).epsilon(1e-9));
    bin = next_bin(bin, seen.amax, kMicroBatches);
  }
  return repeats;
}

TEST_SUITE("exact bin") {
  TEST_CASE("the first gradient repeats a step, once, whatever its magnitude") {
    for (const double amax : {1e-40, 1e-12, 1.0, 1e30}) {
      CHECK(repeats_in(50, [&](int) { return amax; }) == 1);
    }
    CHECK(repeats_in(50, [](int) { return 0.0; }) == 0);
  }

  TEST_CASE("a gradient may grow 16 times a step; faster growth repeats every step and fits then") {
    const auto growing = [](int bits) {
      return repeats_in(12, [=](int step) { return std::ldexp(1.5, bits * step - 60); });
    };
    CHECK(growing(1) == 1);
    CHECK(growing(3) == 1);
    CHECK(growing(4) == 1);
    CHECK(growing(5) == 12);
    CHECK(growing(9) == 12);
  }

  TEST_CASE("one that vanishes and comes back repeats no step while it is away for a few") {
    CHECK(repeats_in(60, [](int step) { return step % 20 < 14 ? 1.0 : 0.0; }) == 1);
    CHECK(repeats_in(60, [](int step) { return step % 5 == 0 ? 1.0 : 0x1p-8; }) == 1);
    CHECK(repeats_in(60, [](int step) { return step == 30 ? 1.0 : 0x1p-20; }) == 2);
  }

  TEST_CASE("a ceiling rises at once, falls one exponent a step and follows a collapse at 2^12") {
    ExactBin bin = next_bin(first_bin(1), 1.0, 1);  // 1 < 2^1
    CHECK(bin.ceiling == 5);
    CHECK(next_bin(bin, 1024, 1).ceiling == 15);
    CHECK(next_bin(bin, 0.25, 1).ceiling == 4);
    CHECK(next_bin(bin, 0x1p-30, 1).ceiling == -17);
    CHECK(next_bin(bin, 0, 1).ceiling == 5);
    for (int i = 0; i < 20; ++i) bin = next_bin(bin, 0.25, 1);
    CHECK(bin.ceiling == 3);
    CHECK(next_bin(bin, 1e300, 1).ceiling == ExactBin::kHighest);
    CHECK(next_bin(first_bin(1), 5e-324, 1).ceiling == ExactBin::kLowest);
  }

  TEST_CASE("there is room for every micro-batch that may come, and never for less than two") {
    for (const auto& [count, bits] : std::vector<std::pair<std::uint64_t, int>>{
             {0, 1}, {1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {64, 6}, {65, 7}, {1ull << 32, 32}}) {
      CAPTURE(count);
      CHECK(first_bin(count).count_bits == bits);
      CHECK(next_bin({.ceiling = 4, .count_bits = 9}, 0, count).count_bits == bits);
    }
  }

  TEST_CASE("what two deposits saw is put together in any order") {
    const Deposit a{.amax = 2, .nonfinite = 1, .fits = true};
    const Deposit b{.amax = 3, .nonfinite = 4, .fits = false};
    for (const Deposit& both : {merged(a, b), merged(b, a)}) {
      CHECK(both.amax == 3);
      CHECK(both.nonfinite == 5);
      CHECK_FALSE(both.fits);
    }
  }
}

}  // namespace
