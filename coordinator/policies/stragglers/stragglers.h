// Stragglers: tells people which ranks are slower than they should be, in which phase, since when
// and how surely. Also reports slow hosts, a slow job, and ranks that pause repeatedly. The
// estimates (estimates/slowness.h) detect slowness; the policy turns changes of the estimates into
// findings. If a step still waits for a slow rank after the other policies had time to act, the
// policy reports the likely cause and where to look. No knob belongs to the policy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/core/signal.h"
#include "coordinator/decide/policy.h"
#include "coordinator/estimates/slow_rank.h"

namespace cox {

enum class SlowCause : std::uint8_t { compute, data, link, host, memory_pressure };
std::string_view to_string(SlowCause cause);

struct Advice {
  SlowCause cause = SlowCause::compute;
  std::string text;  // a sentence: rank, host, phase, likely cause with its evidence, remedy
};

// Returns the likeliest cause: by the machine's evidence if a value is beyond its limit, else by
// the phase in which the rank loses its time. `host` belongs to the rank; null = not known.
Advice advise(const SlowRank& slow, const HostEvidence* host);

// Rounds for which a rank is slow before a person gets advice.
inline constexpr std::uint64_t kAdviceRounds = 128;

class Stragglers final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::stragglers; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
