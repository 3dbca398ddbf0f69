// Random programs of some twenty operators: views, in-place writes, parts without gradients, custom
// functions, raw writes into fresh memory, dropout, cuts at random places. A seed makes a program.
#pragma once

#include <cstdint>

#include "tests/sdk/stream/tape_trial.h"

namespace cox::detail {

Program random_program(std::uint64_t seed);

struct RandomTrials {
  int equal = 0;
  int refused = 0;  // by plain autograd itself
  std::vector<std::string> different;
};
// Tries programs of seeds from `first` on until plain autograd has accepted `count`, each under one
// random plan. Every fourth program differentiates twice.
RandomTrials try_random_programs(std::uint64_t first, int count);

}  // namespace cox::detail
