// Slowdown: a rank that is to be slower than it could be, as `--slow RANK:FACTOR[:FROM-TO]` says.
// Plain value, pure functions; what makes the rank slower is in extra_work.h.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "coordinator/core/status.h"

namespace gpt2 {

struct Slowdown {
  std::int64_t rank = 0;
  double factor = 1;            // of the work that the rank would have without it; >= 1
  std::uint64_t from_step = 0;  // both ends included; steps count from 0
  std::uint64_t to_step = std::numeric_limits<std::uint64_t>::max();
  friend bool operator==(const Slowdown&, const Slowdown&) = default;
};

// "3:2.5" or "3:2.5:100-199". invalid_argument for anything else, factors below 1 or above 1000.
cox::Result<Slowdown> parse_slowdown(const std::string& text);

// Each rank named exists. Errors: invalid_argument.
cox::Status check_ranks(std::span<const Slowdown> slowdowns, int world_size);

// How much work the rank does in this step, against 1; the last slowdown that covers both counts.
double factor_of(std::span<const Slowdown> slowdowns, std::int64_t rank, std::uint64_t step);

}  // namespace gpt2
