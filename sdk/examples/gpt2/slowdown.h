// Slowdown is a rank that is made slower, as in `--slow RANK:FACTOR[:FROM-TO]`. Plain value, pure
// functions; extra_work.h makes the rank slower.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "coordinator/core/status.h"

namespace gpt2 {

struct Slowdown {
  std::int64_t rank = 0;
  double factor = 1;            // times the rank's normal work; >= 1
  std::uint64_t from_step = 0;  // both ends included; steps count from 0
  std::uint64_t to_step = std::numeric_limits<std::uint64_t>::max();
  friend bool operator==(const Slowdown&, const Slowdown&) = default;
};

// Parses "3:2.5" or "3:2.5:100-199". Returns invalid_argument for any other form, and for factors
// below 1 or above 1000.
cox::Result<Slowdown> parse_slowdown(const std::string& text);

// Returns invalid_argument unless every named rank exists.
cox::Status check_ranks(std::span<const Slowdown> slowdowns, int world_size);

// Returns the rank's work in this step, relative to 1. The last slowdown that covers both counts.
double factor_of(std::span<const Slowdown> slowdowns, std::int64_t rank, std::uint64_t step);

}  // namespace gpt2
