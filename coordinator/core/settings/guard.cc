#include "coordinator/core/settings/guard.h"

#include "coordinator/core/settings/settings.h"

namespace cox {

using namespace settings;

std::vector<Setting<GuardConfig>> guard_settings() {
  using C = GuardConfig;
  return {
      mode(&C::mode, {"mode", "", "acts on trouble with the loss"}),
      integer(&C::nonfinite_streak,
              {"nonfinite_streak", "rounds", "non-finite rounds in a row before it acts"},
              {1, 1000000}),
      number(&C::spike_sigmas,
             {"spike_sigmas", "deviations", "a loss this far above the median is a spike"},
             {1, 1000}),
      number(&C::spike_ratio,
             {"spike_ratio", "ratio", "a spike is also above this many times the median loss"},
             {1, 1000}),
      integer(&C::spike_rounds,
              {"spike_rounds", "rounds", "spiking rounds in a row before the guard acts"},
              {1, 1000}),
      integer(&C::window_rounds,
              {"window_rounds", "rounds", "rounds with which a loss is compared"}, {8, 256}),
      integer(&C::hold_rounds,
              {"hold_rounds", "rounds", "knobs stay unchanged that long after trouble"},
              {0, 1000000}),
      integer(&C::max_rollbacks,
              {"max_rollbacks", "rollbacks", "most rollbacks of a job; 0 = only hold"}, {0, 1000}),
      integer(
          &C::nonfinite_limit,
          {"nonfinite_limit", "steps", "non-finite steps in a row that end the job; 0 = no limit"},
          {0, 1000000}),
  };
}

std::vector<Setting<StragglerConfig>> straggler_settings() {
  using C = StragglerConfig;
  return {
      mode(&C::mode, {"mode", "", "names slow ranks"}),
      integer(&C::min_rounds, {"min_rounds", "rounds", "reports of a rank before it is named"},
              {4, 100000}),
      number(&C::slowdown_ratio, {"slowdown_ratio", "ratio", "smallest slowdown that is named"},
             {1.01, 10}),
      number(&C::slowdown_seconds,
             {"slowdown_seconds", "s", "smallest slowdown of a round that is named"}, {0, 3600}),
      number(&C::persistent_seconds,
             {"persistent_seconds", "s", "a slowdown of short rounds must last that long"},
             {0, 3600}),
      number(&C::false_alarms_per_rank_step,
             {"false_alarms_per_rank_step", "alarms", "false alarms on noise, per rank and step"},
             {1e-12, 0.01}),
  };
}

}  // namespace cox
