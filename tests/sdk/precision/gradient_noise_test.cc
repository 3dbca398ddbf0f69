#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "sdk/src/precision/numerics_watch.h"

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

using at::Tensor;

// Returns gradients with a given mean and noise: ratio = noise^2 / mean^2 by construction.
Tensor drawn(const Tensor& parameter, double mean, double noise) {
  return at::full_like(parameter, mean) + at::randn_like(parameter) * noise;
}

// Samples, and waits for results from a device.
void sample(GradientNoise& signal, double scale) {
  signal.sample(scale);
  for (int polls = 0; !signal.receive(); ++polls) REQUIRE(polls < 1000);
}

std::vector<NoiseBlock> two_blocks() {
  return {{"h.0", {torch::zeros({40, 50}), torch::zeros({50})}}, {"h.1", {torch::zeros({300})}}};
}

float ratio_after(int steps, double mean, double noise, double scale, at::ScalarType type,
                  std::uint64_t seed = 9) {
  torch::manual_seed(seed);
  Tensor parameter = torch::zeros({64, 64}, type);
  GradientNoise signal({{"b", {parameter}}}, {});
  for (int step = 0; step < steps; ++step) {
    parameter.mutable_grad() = (drawn(torch::zeros({64, 64}), mean, noise) * scale).to(type);
    sample(signal, scale);
  }
  return signal.ratio(0).value();
}

}  // namespace

TEST_SUITE("gradient noise") {
  TEST_CASE("known noise is recovered, early and late: each within 30 %, 40 together within 4 %") {
    for (const double wanted : {0.01, 0.25, 1.0, 4.0}) {
      for (const int steps : {8, 20, 60}) {
        double sum = 0;
        for (std::uint64_t seed = 1; seed <= 40; ++seed) {
          const double found =
              ratio_after(steps, 0.5, 0.5 * std::sqrt(wanted), 1, at::kFloat, seed) / wanted;
          CHECK(std::abs(found - 1) < 0.3);
          sum += found;
        }
        INFO("ratio " << wanted << " after " << steps << " samples: " << sum / 40);
        CHECK(std::abs(sum / 40 - 1) < 0.04);
      }
    }
  }

  TEST_CASE("a factor of a power of two changes no bit, taken out again or not") {
    const float plain = ratio_after(20, 0.5, 0.7, 1, at::kFloat);
    for (const int k : {-20, -3, 1, 16}) {
      CHECK(ratio_after(20, 0.5, 0.7, std::ldexp(1.0, k), at::kFloat) == plain);
      torch::manual_seed(9);
      Tensor parameter = torch::zeros({64, 64});
      GradientNoise signal({{"b", {parameter}}}, {});
      for (int step = 0; step < 20; ++step) {
        parameter.mutable_grad() = drawn(parameter, 0.5, 0.7) * std::ldexp(1.0, k);
        sample(signal, 1);
      }
      CHECK(signal.ratio(0).value() == plain);
    }
    CHECK(ratio_after(20, 0.5, 0.7, 8, at::kDouble) == doctest::Approx(plain).epsilon(1e-5));
  }

  TEST_CASE("a parameter that never gets a gradient does not leave its block out") {
    torch::manual_seed(9);
    Tensor used = torch::zeros({64, 64});
    const Tensor unused = torch::zeros({64, 64});
    GradientNoise signal({{"b", {used, unused}}}, {});
    for (int step = 0; step < 20; ++step) {
      used.mutable_grad() = drawn(used, 0.5, 0.5);
      sample(signal, 1);
    }
    CHECK(std::abs(signal.ratio(0).value() - 1) < 0.3);
  }

  TEST_CASE("no noise is 0, no signal is the largest, no gradient is nothing") {
    CHECK(ratio_after(20, 1, 0, 1, at::kFloat) < 1e-6);
    CHECK(ratio_after(40, 0, 1, 1, at::kFloat) > 100);
    CHECK(ratio_after(40, 0, 1, 1, at::kFloat) <= GradientNoise::kLargest);
    Tensor parameter = torch::zeros({8});
    GradientNoise signal({{"b", {parameter}}}, {});
    for (int step = 0; step < 9; ++step) {
      parameter.mutable_grad() = torch::zeros({8});
      sample(signal, 1);
    }
    CHECK_FALSE(signal.ratio(0).has_value());
  }

  TEST_CASE("steps and blocks are sampled as told") {
    GradientNoise every8(two_blocks(), {});
    for (int step = 1; step <= 16; ++step) {
      every8.begin_step();
      CHECK(every8.is_due() == (step % 8 == 0));
    }
    every8.sample(1);
    CHECK(every8.has_sampled());
    every8.begin_step();
    every8.sample(1);
    CHECK_FALSE(every8.has_sampled());
    cox::PrecisionConfig never;
    never.sample_every = 0;
    CHECK_FALSE(GradientNoise(two_blocks(), never).is_due());
    CHECK_FALSE(GradientNoise().is_due());

    cox::PrecisionConfig second;
    second.sample_blocks = "*.1";
    std::vector<NoiseBlock> blocks = two_blocks();
    GradientNoise signal(blocks, second);
    for (int step = 0; step < 8; ++step) {
      for (const NoiseBlock& block : blocks) {
        for (const Tensor& parameter : block.parameters) {
          parameter.mutable_grad() = drawn(parameter, 1, 1);
        }
      }
      sample(signal, 1);
    }
    CHECK_FALSE(signal.ratio(0).has_value());
    std::vector<cox::BlockEvidence> evidence(2);
    signal.fill(evidence);
    CHECK(evidence[0].noise_count == 0);
    CHECK(evidence[1].noise_count == 1);
    CHECK(evidence[1].noise_sum == signal.ratio(1));
  }

  TEST_CASE("a block with a gradient missing or not finite sits out, and what was known stays") {
    std::vector<NoiseBlock> blocks = two_blocks();
    GradientNoise signal(blocks, {});
    const auto step = [&] {
      for (const NoiseBlock& block : blocks) {
        for (const Tensor& parameter : block.parameters) {
          parameter.mutable_grad() = drawn(parameter, 1, 0.5);
        }
      }
    };
    for (int i = 0; i < 9; ++i) {
      step();
      sample(signal, 1);
    }
    const auto before = signal.ratio(0);
    REQUIRE(before.has_value());
    step();
    blocks[0].parameters[0].mutable_grad().fill_(std::numeric_limits<double>::infinity());
    blocks[1].parameters[0].mutable_grad().reset();
    sample(signal, 1);
    std::vector<cox::BlockEvidence> evidence(2);
    signal.fill(evidence);
    CHECK(evidence[0].noise_count + evidence[1].noise_count == 0);
    CHECK(signal.ratio(0) == before);
  }

  TEST_CASE("other layouts give the values that their copies give") {
    torch::manual_seed(5);
    const Tensor parameter = torch::zeros({30, 20});
    const Tensor same = torch::zeros({30, 20});
    GradientNoise a({{"b", {parameter}}}, {});
    GradientNoise b({{"b", {same}}}, {});
    for (int step = 0; step < 9; ++step) {
      const Tensor gradient = at::randn({20, 30}).t() + 1;
      parameter.mutable_grad() = gradient;
      same.mutable_grad() = gradient.contiguous();
      sample(a, 1);
      sample(b, 1);
    }
    REQUIRE(a.ratio(0).has_value());
    CHECK(a.ratio(0) == b.ratio(0));
  }
}
