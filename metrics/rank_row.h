// RankRow is one rank in the newest round that the rank reported. Topics add their fields of a rank
// from the RankRow. Plain values.
#pragma once

#include <optional>

#include "coordinator/core/signal.h"

namespace cox::metrics {

struct RankRow {
  RankSignal report;
  // Seconds per covered round.
  double wall_seconds = 0;
  double own_seconds = 0;
  PhaseSeconds phase_seconds{};
  double samples_per_step = 0;
  double reduction_seconds = 0;
  double reduction_exposed_seconds = 0;
  std::optional<double> waiting_seconds;  // wait for the last rank, a part of communication
  double recompute_seconds = 0;           // cost of memory actions, a part of backward

  double slowdown_ratio = 1;
  Phase worst_phase = Phase::other;
};

}  // namespace cox::metrics
