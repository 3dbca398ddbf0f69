// What policy `precision` remembers between rounds: of each block, of each rank, and the program's
// standing requests. Read from and written to a PolicyState; a state of another world size or
// number of blocks starts anew. Value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/signal.h"

namespace cox {

// Why a block should change its format. Values are kept in states: never renumber.
enum class FormatCause : std::uint8_t {
  none = 0,
  // to a safer format, at once
  overflow_forward = 1,
  overflow_backward = 2,  // amount: of these two, values that were not finite
  saturated = 3,
  underflow = 4,  // amount: of these two, their part of the values looked at
  noise = 5,      // amount: noise over signal
  // to a faster format
  signals_good = 6,
  rested = 7,  // from trouble
  // to either
  memory = 8,  // amount: peak over limit
  rule = 9,    // settings or requests leave no other one
};

// Numbers only; rounds and plans are kept as 1 + their number, 0 = none.
struct BlockNotes {
  double seen = 0;           // 1 + format of the newest plan
  double changed_in = 0;     // number of the plan that brought it
  double changed_round = 0;  // 1 + round in which it was seen first; 0 = as it started
  double rest_until = 0;     // no lower format before this round
  double failures = 0;       // times in trouble
  double good_since = 0;     // 1 + round in which good signals began
  double good_samples = 0;   // since then
  double noise = 0;          // newest noise over signal
  double wish = 0;           // 1 + safer format that trouble asks for
  double cause = 0;          // FormatCause of the wish
  double amount = 0;         // see FormatCause
  double culprit = -1;       // rank; -1 = nobody in particular
  double guest = 0;          // 1 = settings or requests brought the format
  double told = 0;           // 1 = why it does not go lower was told since it changed
};
struct RankNotes {
  double slowness = 0;      // own time over the median of all, smoothed
  double in_compute = 0;    // what of that excess is computing, smoothed
  double timed_rounds = 0;  // 0 = neither is known
};

// A request of the program that is in force.
struct StandingRequest {
  PrecisionRequest what{};
  std::uint64_t until = 0;  // round; 0 = until released
  RankId asked_by{-1};
};

struct PrecisionNotes {
  PrecisionNotes(const NumbersState& state, const JobFacts& job);
  PolicyState state() const;

  double applied_before = 0;              // oldest plan in force on a rank in the last round
  double silent_rounds = 0;               // in a row without evidence of gradients
  double pressed = 0;                     // 1 = memory was short in the last round
  std::vector<StandingRequest> requests;  // later ones count
  std::vector<BlockNotes> blocks;
  std::vector<RankNotes> ranks;

 private:
  bool read(const NumbersState& state);
};

inline constexpr std::size_t kMostRequests = 4096;

}  // namespace cox
