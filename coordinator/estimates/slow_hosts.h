// Slow hosts: nodes all of whose ranks are slow. The straggler policy and pages derive the hosts
// from the estimates (slowness.h). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/units.h"
#include "coordinator/estimates/slowness.h"

namespace cox {

// SlowHost is a node all of whose ranks are slow; such ranks rarely have separate causes.
struct SlowHost {
  NodeId node{};
  std::int32_t ranks = 0;     // confirmed or suspected ranks: all that report
  RoundId since{};            // median of the node's ranks
  double slowdown_ratio = 1;  // median of the node's ranks
};

// Returns the hosts whose ranks are all slow, ascending, if the job has more than one host.
// `node_of_rank` has an entry per rank, or is empty: all on one node. Hosts of one rank do not
// count, because the finding about the rank is enough.
std::vector<SlowHost> slow_hosts(const Slowness& slowness, std::span<const NodeId> node_of_rank);

}  // namespace cox
