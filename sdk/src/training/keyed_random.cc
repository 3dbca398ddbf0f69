#include "sdk/src/training/keyed_random.h"

#include <torch/torch.h>

namespace cox::detail {
namespace {

std::uint64_t split_mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t mix(const RandomKey& key) {
  return split_mix(split_mix(split_mix(key.seed) ^ key.step) ^ key.first_sample);
}

void seed_default_generators(const RandomKey& key) {
  torch::manual_seed(mix(key));
}

}  // namespace cox::detail
