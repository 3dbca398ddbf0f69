// Advice to a person about a rank that stays slow: what is likely wrong with it and where to look,
// once the policies had their time and the step still waits for it. Pure functions; told by the
// policy `stragglers`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/slowness.h"

namespace cox {

enum class SlowCause : std::uint8_t { compute, data, link, host, memory_pressure };
std::string_view to_string(SlowCause cause);

struct Advice {
  SlowCause cause = SlowCause::compute;
  std::string text;  // a sentence: rank, host, phase, cause with its sign, what to look at
};

// Returns the likeliest cause: by what the machine tells where that is beyond what is ordinary,
// else by the phase in which the rank loses its time. `host` is that of the rank; null = not known.
Advice advise(const SlowRank& slow, const HostEvidence* host);

// Rounds for which a rank is slow before a person is told what to do about it.
inline constexpr std::uint64_t kAdviceRounds = 128;

// RankHost is the newest that the machine of a rank told of itself.
struct RankHost {
  RankId rank{};
  HostEvidence evidence;

  static auto fields(auto& self) { return std::tie(self.rank, self.evidence); }
};

// Ranks from there on have their host kept only while they are slow or suspected, so that the state
// stays small; evidence comes anew every half a minute.
inline constexpr std::int32_t kHostsKept = 1024;

// Returns the hosts after the round's reports, ascending ranks.
std::vector<RankHost> hosts_after(std::vector<RankHost> before, const PolicyInput& input);

// Returns the findings of a round: one for each rank that was found slow kAdviceRounds ago and that
// the step still waits for.
std::vector<Reason> advice_of_round(const PolicyInput& input, const std::vector<RankHost>& hosts);

}  // namespace cox
