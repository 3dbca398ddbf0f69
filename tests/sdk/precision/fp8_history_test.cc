// Delayed scaling as numbers: multipliers, histories, margins, their state.
#include <cmath>
#include <random>

#include "sdk/src/precision/fp8_block.h"

#include <doctest/doctest.h>

namespace {

using namespace cox::detail;

QuantizeCounts seen(float amax, std::uint64_t saturated = 0) {
  return {.sampled = 10, .saturated = saturated, .underflow = 0, .amax = amax};
}

void steps(AmaxHistory& history, int count, const QuantizeCounts& counts) {
  for (int i = 0; i < count; ++i) {
    history.see(counts);
    history.end_step();
  }
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_history") {
  TEST_CASE("a multiplier is the largest power of two that leaves the margin free") {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> mantissa(1, 2);
    for (const FloatFormat format : {FloatFormat::e4m3, FloatFormat::e5m2}) {
      const double largest = largest_finite(format);
      for (int exponent = -100; exponent <= 100; ++exponent) {
        for (const std::uint32_t margin : {0u, 1u, 8u}) {
          const float amax = std::ldexp(mantissa(random), exponent);
          const double multiplier = fp8_multiplier(format, amax, margin);
          int unused = 0;
          CHECK(std::frexp(multiplier, &unused) == 0.5);
          const double used = amax * multiplier * std::ldexp(1.0, static_cast<int>(margin));
          CHECK(used <= largest);
          CHECK(used * 2 > largest);
        }
      }
    }
  }

  TEST_CASE("multipliers of extreme magnitudes and their inverses are normal floats") {
    for (const float amax : {1e-45f, 1e-38f, 1.0f, 3.4e38f}) {
      for (const std::uint32_t margin : {0u, 16u}) {
        const float multiplier = fp8_multiplier(FloatFormat::e5m2, amax, margin);
        CHECK(std::isnormal(multiplier));
        CHECK(std::isnormal(1 / multiplier));
      }
    }
    CHECK(fp8_multiplier(FloatFormat::e4m3, 0, 0) == 1);
    CHECK(fp8_multiplier(FloatFormat::e4m3, 448, 0) == 1);
    CHECK(fp8_multiplier(FloatFormat::e4m3, 449, 0) == 0.5f);
  }

  TEST_CASE("the largest of the last steps counts, and only of those") {
    AmaxHistory history(3);
    CHECK(history.is_empty());
    steps(history, 1, seen(8));
    CHECK_FALSE(history.is_empty());
    steps(history, 2, seen(2));
    CHECK(history.amax() == 8);
    steps(history, 1, seen(1));
    CHECK(history.amax() == 2);
  }

  TEST_CASE("several calls in a step are one entry; a step without calls is none") {
    AmaxHistory history(2);
    history.see(seen(1));
    history.see(seen(5));
    history.see(seen(3));
    history.end_step();
    history.end_step();
    history.end_step();
    CHECK(history.amax() == 5);
    steps(history, 2, seen(1));
    CHECK(history.amax() == 1);
  }

  TEST_CASE("a step that is dropped leaves no entry and no margin") {
    AmaxHistory history(4);
    steps(history, 1, seen(2));
    history.see(seen(1e30f, 5));
    history.drop_step();
    history.end_step();
    CHECK(history.amax() == 2);
    CHECK(history.extra_margin() == 0);
    steps(history, 1, seen(3));
    CHECK(history.amax() == 3);
  }

  TEST_CASE("clipping adds a bit of margin a step, eight at most; 64 clean steps take one back") {
    AmaxHistory history(4);
    steps(history, 3, seen(1, 1));
    CHECK(history.extra_margin() == 3);
    steps(history, 20, seen(1, 7));
    CHECK(history.extra_margin() == AmaxHistory::kMostExtra);
    steps(history, 63, seen(1));
    CHECK(history.extra_margin() == 8);
    steps(history, 1, seen(1));
    CHECK(history.extra_margin() == 7);
    steps(history, 63, seen(1));
    steps(history, 1, seen(1, 1));
    CHECK(history.extra_margin() == 8);
    steps(history, 64 * 10, seen(1));
    CHECK(history.extra_margin() == 0);
  }

  TEST_CASE("a history that was saved goes on as the one it was saved from") {
    std::mt19937 random(5);
    AmaxHistory kept(5);
    const auto step = [](AmaxHistory& history, unsigned number) {
      steps(history, 1, seen(static_cast<float>(number % 100), number % 7 == 0));
    };
    for (int i = 0; i < 12; ++i) step(kept, static_cast<unsigned>(random()));
    std::vector<double> state;
    kept.append_to(state);
    AmaxHistory loaded(5);
    std::span<const double> rest = state;
    REQUIRE(loaded.read(rest).ok());
    CHECK(rest.empty());
    for (int i = 0; i < 200; ++i) {
      const auto number = static_cast<unsigned>(random());
      step(kept, number);
      step(loaded, number);
      REQUIRE(kept.amax() == loaded.amax());
      REQUIRE(kept.extra_margin() == loaded.extra_margin());
    }
  }

  TEST_CASE("damaged state is refused with a reason and changes nothing") {
    AmaxHistory history(2);
    steps(history, 1, seen(4));
    std::vector<double> state;
    history.append_to(state);
    const auto refuses = [&](std::vector<double> damaged) {
      std::span<const double> rest = damaged;
      const cox::Status status = history.read(rest);
      CHECK_FALSE(status.ok());
      CHECK(status.text().find("FP8") != std::string::npos);
      CHECK(history.amax() == 4);
    };
    refuses({});
    refuses(std::vector<double>(state.begin(), state.end() - 1));
    for (std::size_t i = 0; i < state.size(); ++i) {
      for (const double bad : {-1.0, 1e300, std::nan("")}) {
        std::vector<double> damaged = state;
        damaged[i] = bad;
        refuses(damaged);
      }
    }
  }
}
