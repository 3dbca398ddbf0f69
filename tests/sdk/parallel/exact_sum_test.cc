#include "sdk/src/parallel/exact_sum.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

double quantum_of(const ExactBin& bin) {
  return std::ldexp(1.0, bin.ceiling + bin.count_bits - 52);
}

using Sums = std::vector<double>;
using Random = std::mt19937_64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Part {
  at::Tensor gradient;
  double weight = 1;
};
using Parts = std::vector<Part>;

std::size_t below(Random& random, std::size_t end) {
  return static_cast<std::size_t>(random() % end);
}

// Returns gradients of `count` micro-batches. Every element has its own magnitude, some are 0, and
// every second one cancels most of the one before.
Parts some_parts(Random& random, std::size_t count, std::int64_t size, at::ScalarType type) {
  torch::manual_seed(random());
  const double scale = std::ldexp(1.0, static_cast<int>(below(random, 40)) - 30);
  const at::Tensor magnitudes = torch::exp2(-torch::randint(0, 13, {size}, at::kFloat));
  Parts parts;
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor values = torch::randn({size}) * magnitudes * scale;
    values.masked_fill_(torch::rand({size}) < 0.1, 0);
    if (i % 2 == 1) values = values * 1e-3 - parts.back().gradient.to(at::kFloat);
    const double weight = below(random, 2) == 0 ? 8 : 0.1 + static_cast<double>(i % 7) * 1.7;
    parts.push_back({values.to(type), weight});
  }
  return parts;
}

ExactBin bin_for(const Parts& parts) {
  double amax = 0;
  for (const Part& part : parts) {
    amax = std::max(
        amax, part.gradient.to(at::kDouble).abs().max().item<double>() * std::abs(part.weight));
  }
  return next_bin(first_bin(parts.size()), amax, parts.size());
}

// Sums whole quanta as integers; only the products round.
Sums reference(const Parts& parts, const ExactBin& bin, std::size_t size) {
  std::vector<std::int64_t> quanta(size, 0);
  for (const Part& part : parts) {
    const at::Tensor wide = part.gradient.to(at::kDouble).contiguous();
    const double* values = wide.const_data_ptr<double>();
    for (std::size_t i = 0; i < size; ++i) {
      quanta[i] += std::llrint(values[i] * part.weight / quantum_of(bin));
    }
  }
  Sums sums;
  for (const std::int64_t each : quanta) {
    sums.push_back(static_cast<double>(each) * quantum_of(bin));
  }
  return sums;
}

// Sums as a job would: micro-batches in any order on any rank, ranks' sums added in any order.
Sums summed_on_ranks(Random& random, Parts parts, const ExactBin& bin, std::size_t size) {
  std::shuffle(parts.begin(), parts.end(), random);
  std::vector<Sums> ranks(1 + below(random, 8), Sums(size, 0.0));
  for (const Part& part : parts) {
    CHECK(deposit(part.gradient, part.weight, bin, ranks[below(random, ranks.size())]).fits);
  }
  std::shuffle(ranks.begin(), ranks.end(), random);
  Sums total = ranks[0];
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < size; ++i) total[i] += ranks[r][i];
  }
  return total;
}

bool same_bits(const Sums& a, const Sums& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};

TEST_SUITE("exact sum") {
  TEST_CASE("whatever ranks add micro-batches in whatever order, the sum is that of integers") {
    Random random(1);
    for (int round = 0; round < 200; ++round) {
      CAPTURE(round);
      const std::size_t size = 1 + below(random, 80);
      const at::ScalarType type = kTypes[round % 4];
      const Parts parts =
          some_parts(random, 1 + below(random, 64), static_cast<std::int64_t>(size), type);
      const ExactBin bin = bin_for(parts);
      const Sums expected = reference(parts, bin, size);
      for (int order = 0; order < 4; ++order) {
        CHECK(same_bits(summed_on_ranks(random, parts, bin, size), expected));
      }
    }
  }

  TEST_CASE("every element is within half a quantum a deposit, all together nearer than in fp32") {
    Random random(2);
    long double exact_squares = 0;
    long double plain_squares = 0;
    for (int round = 0; round < 50; ++round) {
      const Parts parts = some_parts(random, 2 + below(random, 60), 64, at::kFloat);
      const ExactBin bin = bin_for(parts);
      const Sums sums = summed_on_ranks(random, parts, bin, 64);
      const auto bound = static_cast<double>(parts.size()) * quantum_of(bin) / 2 * (1 + 1e-9);
      for (std::int64_t i = 0; i < 64; ++i) {
        long double truth = 0;
        float plain = 0;
        for (const Part& part : parts) {
          const float value = part.gradient[i].item<float>();
          truth += static_cast<long double>(value * part.weight);
          plain += static_cast<float>(part.weight) * value;
        }
        const auto error = [&](double sum) { return (sum - truth) / quantum_of(bin); };
        const long double mine = error(sums[static_cast<std::size_t>(i)]);
        REQUIRE(std::abs(mine) * quantum_of(bin) <= bound);
        exact_squares += mine * mine;
        plain_squares += error(plain) * error(plain);
      }
    }
    CHECK(exact_squares < 1e-6L * plain_squares);
  }

  TEST_CASE("threads and the place in memory change no bit") {
    torch::manual_seed(3);
    const std::int64_t size = 300007;
    const at::Tensor gradient = torch::randn({size + 1}).slice(0, 1);
    const ExactBin bin = next_bin(first_bin(4), 8, 4);
    const int before = at::get_num_threads();
    Sums one(static_cast<std::size_t>(size), 0.0);
    Sums three = one;
    at::set_num_threads(1);
    const Deposit alone = deposit(gradient, 0.3, bin, one);
    at::set_num_threads(3);
    const Deposit together = deposit(gradient.clone(), 0.3, bin, three);
    at::Tensor narrow = torch::empty({size});
    withdraw(three, 0.7, narrow);
    at::set_num_threads(before);
    CHECK(same_bits(one, three));
    CHECK(alone.amax == together.amax);
    CHECK(alone.fits);
    const at::Tensor wide = at::from_blob(one.data(), {size}, at::kDouble);
    CHECK(torch::equal(narrow, (wide / 0.7).to(at::kFloat)));
  }

  TEST_CASE("a magnitude at the edge of the bin does not fit, one below it does, at any place") {
    const ExactBin bin{.ceiling = -3, .count_bits = 2};
    const float edge = 0.125f;
    for (const std::int64_t size : {1, 7, 8, 33, 4096, 4097, 9000}) {
      for (const std::int64_t place : {std::int64_t{0}, size / 2, size - 1}) {
        for (const float sign : {1.0f, -1.0f}) {
          for (const at::ScalarType type : kTypes) {
            at::Tensor gradient = torch::full({size}, 1e-4).to(type);
            Sums sums(static_cast<std::size_t>(size), 0.0);
            gradient[place] = sign * edge;
            const Deposit out = deposit(gradient, 1, bin, sums);
            REQUIRE_FALSE(out.fits);
            REQUIRE(out.amax == edge);
            gradient[place] = sign * edge * 0.99f;
            const Deposit in = deposit(gradient, 1, bin, sums);
            REQUIRE(in.fits);
            REQUIRE(in.amax < edge);
            REQUIRE(deposit(gradient, -1.02, bin, sums).fits == false);
          }
        }
      }
    }
  }

  TEST_CASE("a full bin of the largest values that fit is still exact") {
    for (const std::int32_t bits : {1, 2, 6}) {
      const ExactBin bin{.ceiling = 5, .count_bits = bits};
      const float largest = std::nextafter(32.0f, 0.0f);
      Sums sums(3, 0.0);
      for (int i = 0; i < 1 << bits; ++i) {
        CHECK(deposit(torch::tensor({largest, -largest, 1e-20f}), 1, bin, sums).fits);
      }
      CHECK(sums[0] == std::ldexp(largest, bits));
      CHECK(sums[1] == -std::ldexp(largest, bits));
      CHECK(sums[2] == 0);
    }
  }

  TEST_CASE("values that are not finite are counted and not added; the others are") {
    for (const at::ScalarType type : kTypes) {
      at::Tensor gradient = torch::ones({5000}).to(type);
      gradient[3] = kInfinity;
      gradient[4] = -kInfinity;
      gradient[4999] = std::nan("");
      gradient[70] = -3;
      Sums sums(5000, 0.0);
      const Deposit seen = deposit(gradient, 2, {.ceiling = 3, .count_bits = 3}, sums);
      CHECK(seen.nonfinite == 3);
      CHECK(seen.amax == 6);
      CHECK(seen.fits);
      CHECK(sums[3] == 0);
      CHECK(sums[4999] == 0);
      CHECK(sums[5] == 2);
      CHECK(sums[70] == -6);
    }
  }

  TEST_CASE("subnormal gradients and lost zeros keep their place at the ends of the range") {
    const at::Tensor small = torch::tensor({0x1p-149f, -0x1p-140f, -0.0f, 0.0f});
    const ExactBin low = next_bin(first_bin(2), 0x1p-140 * 0x1p-200, 2);
    Sums sums(4, 0.0);
    CHECK(deposit(small, 0x1p-200, low, sums).amax == 0x1p-340);
    CHECK(sums[0] == 0x1p-349);
    CHECK(sums[1] == -0x1p-340);
    CHECK_FALSE(std::signbit(sums[2]));
    const at::Tensor large = torch::tensor({0x1.8p127, -0x1p899, 0x1p900, 0x1p1023}, at::kDouble);
    Sums high(4, 0.0);
    const Deposit seen = deposit(large, 1, next_bin(low, 0x1p899, 1), high);
    CHECK(seen.fits);
    CHECK(seen.nonfinite == 2);
    CHECK(high[1] == -0x1p899);
    CHECK(high[2] == 0);
  }

  TEST_CASE("views, transposed and empty gradients lie as their contiguous copies") {
    torch::manual_seed(5);
    const at::Tensor base = torch::randn({6, 40});
    const ExactBin bin = next_bin(first_bin(1), 8, 1);
    for (const at::Tensor& view : {base.t(), base.slice(1, 3, 30), base.slice(0, 0, 0)}) {
      Sums here(static_cast<std::size_t>(view.numel()), 0.0);
      Sums there = here;
      deposit(view, 1, bin, here);
      deposit(view.contiguous(), 1, bin, there);
      CHECK(same_bits(here, there));
      at::Tensor back = torch::empty_like(view);
      withdraw(here, 1, back);
      CHECK(torch::allclose(back, view, 0, 1e-12));
    }
    Sums short_one(5, 0.0);
    CHECK_THROWS(deposit(base, 1, bin, short_one));
  }

  TEST_CASE("a gradient comes back in its own type, rounded from the quotient") {
    const Sums sums = {1.0, 3.0, -10.0, 0x1p-30};
    for (const at::ScalarType type : kTypes) {
      at::Tensor gradient = torch::empty({2, 2}, type);
      withdraw(sums, 3, gradient);
      const at::Tensor expected = (torch::tensor(sums, at::kDouble) / 3).to(type).view({2, 2});
      CHECK(torch::equal(gradient, expected));
    }
  }
}

}  // namespace
