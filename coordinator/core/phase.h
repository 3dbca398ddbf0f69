// Phase is a part of a training step for which time is counted. `host` is Coxswain's own work
// between the step before and this one, kept apart so that no rank is blamed for it. `other` is the
// rest of the wall time. Values are part of the wire format and of the run directory: never
// renumber.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cox {

enum class Phase : std::uint8_t {
  data = 0,
  forward = 1,
  backward = 2,
  compute = 3,  // for loops that do not separate forward from backward
  communication = 4,
  optimizer = 5,
  other = 6,
  host = 7,
};

inline constexpr std::size_t kPhases = 8;

inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "data", "forward", "backward", "compute", "communication", "optimizer", "other", "host"};

constexpr std::string_view to_string(Phase phase) {
  return kPhaseNames[static_cast<std::size_t>(phase)];
}

// Seconds per phase of one rank over one reporting interval.
using PhaseSeconds = std::array<float, kPhases>;

// Returns whether the phase is a rank's own work: all phases except waiting for others and
// Coxswain's own work between steps.
constexpr bool is_own_work(Phase phase) {
  return phase != Phase::communication && phase != Phase::host;
}

}  // namespace cox
