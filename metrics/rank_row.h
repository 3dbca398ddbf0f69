// RankRow is one rank in the newest round that it reported. Topics add their fields of a rank from
// it. Plain values.
#pragma once

#include <optional>

#include "coordinator/core/signal.h"

namespace cox::metrics {

struct RankRow {
  RankSignal report;
  // Per covered round.
  double wall_seconds = 0;
  double own_seconds = 0;
  PhaseSeconds phase_seconds{};
  double samples_per_step = 0;
  double reduction_seconds = 0;
  double reduction_exposed_seconds = 0;
  std::optional<double> waiting_seconds;  // for the last rank, a part of communication
  double recompute_seconds = 0;           // what memory actions cost, a part of backward

  double slowdown_ratio = 1;
  Phase worst_phase = Phase::other;
};

}  // namespace cox::metrics
