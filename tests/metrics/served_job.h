// Returns the data of a simulated job's pages after some rounds.
#pragma once

#include <utility>

#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "simulated_job.h"

namespace cox::metrics {

inline Served served_after(SimulatedSetup setup, int rounds) {
  SimulatedJob job(std::move(setup));
  TelemetryState state(job.job(), UnixTime{1}, {"0.1.0", "abc"}, kSimulatedPeakFlops);
  state.set(simulated_operators());
  job.steps(state, rounds);
  return {state.snapshot(), UnixTime{job.now() + 1}, settings_of(Config{})};
}

}  // namespace cox::metrics
