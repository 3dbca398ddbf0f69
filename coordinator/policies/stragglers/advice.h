// Advice to a person about a rank that stays slow: what is likely wrong with it and where to look,
// once the policies had their time and the step still waits for it. Pure functions; told by the
// policy `stragglers`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/slow_rank.h"

namespace cox {

enum class SlowCause : std::uint8_t { compute, data, link, host, memory_pressure };
std::string_view to_string(SlowCause cause);

struct Advice {
  SlowCause cause = SlowCause::compute;
  std::string text;  // a sentence: rank, host, phase, cause with its sign, what to look at
};

// Returns the likeliest cause: by the evidence of its machine where a sign there is beyond what is
// ordinary, else by the phase in which the rank loses its time. `host` may be null.
Advice advise(const SlowRank& slow, const HostEvidence* host);

// HostOfRank is the newest evidence of the machine of a rank that is slow or suspected.
struct HostOfRank {
  RankId rank{};
  std::string payload;  // of its fragment

  static auto fields(auto& self) { return std::tie(self.rank, self.payload); }
};

// Returns the newest evidence of the ranks that are slow or suspected now, of those from which any
// came since they are.
std::vector<HostOfRank> newest_hosts(const PolicyInput& input, std::vector<HostOfRank> before);

// Rounds for which a rank is slow before a person is told what to do about it.
inline constexpr std::uint64_t kAdviceRounds = 128;

// Returns the findings of a round: one for each rank that was found slow kAdviceRounds ago and that
// the step still waits for.
std::vector<Reason> advice_of_round(const PolicyInput& input, std::span<const HostOfRank> hosts);

}  // namespace cox
