// A small seeded source of randomness for simulations: the same seed gives the same run. Value.
#pragma once

#include <cmath>
#include <cstdint>

namespace cox::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // splitmix64
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  std::uint64_t below(std::uint64_t n) { return bits() % n; }                       // n > 0
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2 * std::log(uniform())) * std::cos(kTwoPi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace cox::testing
