// Slow hosts: nodes all of whose ranks are slow. Derived from the estimates (slowness.h) where it
// is wanted, in the straggler policy and on pages. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/units.h"
#include "coordinator/estimates/slowness.h"

namespace cox {

// SlowHost is a node all of whose ranks are slow, which is rarely the fault of each of them.
struct SlowHost {
  NodeId node{};
  std::int32_t ranks = 0;     // of it that are confirmed or suspected: all that report
  RoundId since{};            // median of its ranks
  double slowdown_ratio = 1;  // likewise
};

// Returns the hosts whose ranks are all slow, ascending, where the job has more than one host.
// `node_of_rank` has an entry per rank, or is empty: all on one node. Hosts of one rank do not
// count: the rank says it.
std::vector<SlowHost> slow_hosts(const Slowness& slowness, std::span<const NodeId> node_of_rank);

}  // namespace cox
