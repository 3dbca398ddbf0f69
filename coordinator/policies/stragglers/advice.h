// Advice to a person about a rank that stays slow: what is likely wrong with it and where to look,
// once the policies had their time and the step still waits for it. Pure functions; told by the
// policy `stragglers`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/core/slowness.h"

namespace cox {

// HostSigns is what is known of the machine that a slow rank runs on. Every sign may be missing.
struct HostSigns {
  std::string host;
  std::optional<double> steal_ratio;      // of CPU time that the hypervisor gave to others
  std::optional<double> throttled_ratio;  // of time for which a cgroup limit held the rank up
  std::optional<double> load_per_core;
  std::optional<double> clock_ratio;      // present clock over the largest
  std::optional<double> memory_pressure;  // part of time in which somebody waited for memory
  std::optional<double> io_pressure;      // the same for reads and writes
};

enum class SlowCause : std::uint8_t { compute, data, link, host, memory_pressure };
std::string_view to_string(SlowCause cause);

struct Advice {
  SlowCause cause = SlowCause::compute;
  std::string text;  // a sentence: rank, host, phase, cause with its sign, what to look at
};

// Returns the likeliest cause: by the machine's signs where one of them is beyond what is ordinary,
// else by the phase in which the rank loses its time.
Advice advise(const SlowRank& slow, const std::optional<HostSigns>& signs);

// Rounds for which a rank is slow before a person is told what to do about it.
inline constexpr std::uint64_t kAdviceRounds = 128;

// Returns the findings of a round: one for each rank that was found slow kAdviceRounds ago and that
// the step still waits for.
std::vector<Reason> advice_of_round(const PolicyInput& input);

}  // namespace cox
