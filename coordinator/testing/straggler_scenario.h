// Straggler scenarios: simulated jobs (simulated_job.h) in which ranks, hosts or the whole job get
// slower, or only seem to, each with what is true beside it. For tests and benchmarks of whoever
// names slow ranks. A value from a seed; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/testing/simulated_job.h"

namespace cox::testing {

enum class StragglerKind : std::uint8_t {
  quiet,           // noise only
  step,            // one rank, from some round on
  ramp,            // the same, growing
  thermal,         // the same, coming and going smoothly
  flicker,         // a round or two now and then: transient
  pause,           // two to five rounds every fifty or more: transient
  communication,   // one rank's own part of communication
  data,            // one rank's data loading
  uneven_work,     // unequal samples and recompute plans, and one rank slow or none
  hidden_waiting,  // one rank; the others' waiting looks like communication
  several,         // from two ranks to just below half
  all_ranks,       // the job is slow, nobody is a straggler
  host,            // all ranks of one host
  bursts,          // scheduling noise of a busy machine on short rounds: nobody
  two_ranks,       // one of two, from the start or later
};
inline constexpr std::size_t kStragglerKinds = 15;
std::string_view to_string(StragglerKind kind);

// SlowTruth is a rank that is slow for good and whose name is wanted.
struct SlowTruth {
  RankId rank{};
  std::optional<Phase> phase;  // empty = all phases alike, so none is wrong
  double slowdown_ratio = 1;   // its own work over that of a quiet rank, mean over its course
  std::uint64_t from = 0;      // first slow round
};

struct StragglerScenario {
  StragglerKind kind = StragglerKind::quiet;
  Scenario job;
  std::uint64_t rounds = 0;         // to play
  std::vector<SlowTruth> slow;      // ascending ranks
  double job_slowdown_ratio = 1;    // of all ranks ...
  std::uint64_t job_slow_from = 0;  // ... from this round on
  NodeId slow_host{-1};             // -1 = none
};

// Returns the scenario of this seed, of any kind, or of the kind asked for.
StragglerScenario straggler_scenario(std::uint64_t seed);
StragglerScenario straggler_scenario(StragglerKind kind, std::uint64_t seed);

}  // namespace cox::testing
