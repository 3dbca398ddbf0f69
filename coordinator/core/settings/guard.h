// The settings of the policies that watch a run: `guard.*` (trouble with the loss) and
// `stragglers.*` (slow ranks). Both policies read their settings in every round. Part of Config;
// see settings.h for the rows. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/settings/section.h"

namespace cox {

struct GuardConfig {
  PolicyMode mode = PolicyMode::on;
  std::uint32_t nonfinite_streak = 5;  // skipped steps in a row before the guard acts
  double spike_sigmas = 8;             // loss above median + this many robust deviations ...
  double spike_ratio = 1.5;            // ... and above this many times the median
  std::uint32_t spike_rounds = 3;      // rounds in a row that must spike
  std::uint32_t window_rounds = 64;    // history compared with
  std::uint32_t hold_rounds = 50;      // duration of a hold after trouble
  std::uint32_t max_rollbacks = 3;     // of one job; 0 = hold only
  // Skipped steps in a row that end the job, whatever the mode; 0 = never.
  std::uint32_t nonfinite_limit = 200;
};
std::vector<Setting<GuardConfig>> guard_settings();

struct StragglerConfig {
  PolicyMode mode = PolicyMode::on;
  std::uint32_t min_rounds = 12;    // reports of a rank before naming it
  double slowdown_ratio = 1.05;     // smallest persistent slowdown worth naming ...
  double slowdown_seconds = 0.001;  // ... or, if that is more, this many seconds of a round
  double persistent_seconds = 2;    // a shorter slowness of short rounds is a pause
  double false_alarms_per_rank_step = 1e-6;  // stated rate for noise without stragglers
};
std::vector<Setting<StragglerConfig>> straggler_settings();

}  // namespace cox
