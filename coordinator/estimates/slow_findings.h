// SlowFindings: what the estimates (slowness.h) say of slow ranks, hosts and of the job as a whole,
// cut to a bounded size and sorted for people. The stage between the estimates and telemetry; a
// Decision carries it. Pure; plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/estimates/job_pace.h"
#include "coordinator/estimates/slow_hosts.h"
#include "coordinator/estimates/slow_rank.h"
#include "coordinator/estimates/slowness.h"

namespace cox {

inline constexpr std::size_t kSlowRanksTold = 16;  // of each state
inline constexpr std::size_t kSlowHostsTold = 16;

struct SlowFindings {
  // Confirmed ranks, then suspected, then recovered ones; the largest slowdown first in each state.
  std::vector<SlowRank> ranks;
  // All ranks of a state, told or not.
  std::int32_t confirmed = 0;
  std::int32_t suspected = 0;
  std::int32_t recovered = 0;
  std::optional<SlowJob> job;   // the job as a whole is slower than it was
  std::vector<SlowHost> hosts;  // whose ranks are all slow; the largest slowdown first

  // Returns the entry of the rank; null where it is ordinary or was left out.
  const SlowRank* find(RankId rank) const;
  // Returns the confirmed rank with the largest slowdown; null where none is confirmed.
  const SlowRank* slowest() const;
};

// `node_of_rank` as in slow_hosts().
SlowFindings slow_findings(const Slowness& slowness, std::span<const NodeId> node_of_rank);

}  // namespace cox
