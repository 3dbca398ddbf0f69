// Scenario: what happens in a simulated job, all of it decided by one seed. Plain values.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"

namespace cox::sim {

inline constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

// A rank is slower in some rounds, by a part of its own work in a quiet round.
struct Slowdown {
  RankId rank{};
  std::optional<Phase> phase;  // where the extra time goes; empty = spread over all phases
  double extra_ratio = 0.05;   // of the rank's own work
  std::uint64_t from = 0;      // first round
  std::uint64_t until = kForever;
};

enum class NoiseKind {
  normal,   // logarithms are normal
  student,  // logarithms follow Student's t with 3 degrees of freedom, same deviation
  pauses,   // normal, and one step in a hundred takes 1.2 to 2.5 times as long
};

struct Scenario {
  std::uint64_t seed = 1;
  std::int32_t ranks = 8;
  std::size_t blocks = 12;
  PhaseSeconds phases = {0.002f, 0.03f, 0.06f, 0, 0.01f, 0.005f, 0.001f, 0};  // quiet round
  NoiseKind noise = NoiseKind::normal;
  double step_noise = 0.03;    // deviation of the logarithm of a rank's own work
  double phase_noise = 0.005;  // the same, of each phase on its own
  double common_noise = 0.02;  // the same, of all ranks together
  std::vector<Slowdown> slowdowns;

  // Chances per rank and round of what goes wrong with its report.
  double missing = 0;
  double duplicate = 0;
  double stale = 0;
  double damaged = 0;
  double nonfinite = 0;
  // Rounds with trouble of the whole job.
  std::uint64_t storm_from = kForever;   // every loss is NaN from here ...
  std::uint64_t storm_until = 0;         // ... to before here
  std::uint64_t finish_from = kForever;  // from here on the upper half of the ranks has finished
  bool watching = false;                 // no rank applies plans
  std::uint32_t plan_delay_rounds = 2;   // a plan reaches a rank after 0 to this many rounds
};

}  // namespace cox::sim
