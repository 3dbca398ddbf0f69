// Random numbers that depend on what they are for, not on what was drawn before: the key of a
// forward pass is the job's seed, the step and the first sample of the share, so a resumed or
// repeated step draws the same numbers. Pure key; seeding touches torch's default generators.
#pragma once

#include <cstdint>

namespace cox::detail {

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t first_sample = 0;
};

// Mixes the three by the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(const RandomKey& key);

void seed_default_generators(const RandomKey& key);

}  // namespace cox::detail
