// Straggler scenarios: simulated jobs (simulated_job.h) in which ranks, hosts or the whole job get
// slower, or only seem to. Each comes with the truth. For tests and benchmarks of code that names
// slow ranks. A pure function of a seed.
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
  ramp,            // one rank, growing
  thermal,         // one rank, coming and going smoothly
  flicker,         // a round or two now and then: transient
  pause,           // two to five rounds every fifty or more: transient
  communication,   // one rank's own part of communication
  data,            // one rank's data loading
  uneven_work,     // unequal samples and recompute plans, and one rank slow or none
  hidden_waiting,  // one rank; the others' waiting looks like communication
  several,         // from two ranks to just below half
  all_ranks,       // the whole job is slow; no rank is a straggler
  host,            // all ranks of one host
  bursts,          // scheduling noise of a busy machine on short rounds; no straggler
  two_ranks,       // one of two ranks, from the start or later
};
inline constexpr std::size_t kStragglerKinds = 15;
std::string_view to_string(StragglerKind kind);

// SlowTruth is a rank that is permanently slow and should be named.
struct SlowTruth {
  RankId rank{};
  std::optional<Phase> phase;  // empty = all phases equally, so any phase is right
  double slowdown_ratio = 1;   // own work relative to a quiet rank, mean over the slow rounds
  std::uint64_t from = 0;      // first slow round
};

struct StragglerScenario {
  StragglerKind kind = StragglerKind::quiet;
  Scenario job;
  std::uint64_t rounds = 0;         // number of rounds to simulate
  std::vector<SlowTruth> slow;      // ascending ranks
  double job_slowdown_ratio = 1;    // slowdown of all ranks ...
  std::uint64_t job_slow_from = 0;  // ... from this round on
  NodeId slow_host{-1};             // -1 = none
};

// Returns the scenario of this seed, of any kind or of the given kind.
StragglerScenario straggler_scenario(std::uint64_t seed);
StragglerScenario straggler_scenario(StragglerKind kind, std::uint64_t seed);

}  // namespace cox::testing
