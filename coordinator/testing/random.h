// A small seeded source of randomness for simulations. Equal seeds give equal runs. Value.
#pragma once

#include <cmath>
#include <cstdint>

#include "coordinator/core/split_mix.h"

namespace cox::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : numbers_(seed) {}

  std::uint64_t bits() { return numbers_.next(); }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  std::uint64_t below(std::uint64_t n) { return bits() % n; }                       // n > 0
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2 * std::log(uniform())) * std::cos(kTwoPi * uniform());
  }

 private:
  SplitMix numbers_;
};

}  // namespace cox::testing
