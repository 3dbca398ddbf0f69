// SlowFindings: the findings of the estimates (slowness.h) about slow ranks, slow hosts and the
// whole job, cut to a bounded size and sorted for people. The stage between the estimates and
// telemetry; a Decision carries a SlowFindings. Pure; plain values.
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

inline constexpr std::size_t kSlowRanksTold = 16;  // entries of each state in SlowFindings
inline constexpr std::size_t kSlowHostsTold = 16;

struct SlowFindings {
  // Confirmed ranks, then suspected, then recovered ones; the largest slowdown first in each state.
  std::vector<SlowRank> ranks;
  // All ranks of a state, also those left out of `ranks`.
  std::int32_t confirmed = 0;
  std::int32_t suspected = 0;
  std::int32_t recovered = 0;
  std::optional<SlowJob> job;   // the job as a whole is slower than it was
  std::vector<SlowHost> hosts;  // all of whose ranks are slow; the largest slowdown first

  // Returns the entry of the rank, or null for an ordinary rank or one left out.
  const SlowRank* find(RankId rank) const;
  // Returns the confirmed rank with the largest slowdown, or null.
  const SlowRank* slowest() const;
};

// Returns the findings. `node_of_rank` as in slow_hosts().
SlowFindings slow_findings(const Slowness& slowness, std::span<const NodeId> node_of_rank);

}  // namespace cox
