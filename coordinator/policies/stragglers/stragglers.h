// Stragglers: tells people which ranks are slower than they should be, in which phase, since when
// and how sure that is; whether it is a whole host, or the whole job; and which ranks pause again
// and again. The estimates (estimates/slowness.h) detect it; this policy turns what changed in them
// into findings. Once the other policies had their time and the step still waits for a slow rank,
// it tells a person what is likely wrong with that rank and where to look. No knob belongs to it.
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
  std::string text;  // a sentence: rank, host, phase, cause with its sign, what to look at
};

// Returns the likeliest cause: by what the machine tells where that is beyond what is ordinary,
// else by the phase in which the rank loses its time. `host` is that of the rank; null = not known.
Advice advise(const SlowRank& slow, const HostEvidence* host);

// Rounds for which a rank is slow before a person is told what to do about it.
inline constexpr std::uint64_t kAdviceRounds = 128;

class Stragglers final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::stragglers; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override;
  PolicyOutput at_start(const PolicyInput& input, PolicyState state) const override;
};

}  // namespace cox
