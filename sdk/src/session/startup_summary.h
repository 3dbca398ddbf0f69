// The lines a job prints when it starts: who is there, on what, and whether it is the same
// everywhere. Collective; start-up only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

// One rank's machine. Fixed size, so that it can be gathered.
struct HostFacts {
  char host[64] = {};
  char processor[64] = {};
  std::uint64_t memory_bytes = 0;
  std::int32_t cores = 0;    // usable by this process
  std::int32_t threads = 0;  // that torch computes with
  std::int32_t cuda_devices = 0;
  std::int32_t unused = 0;  // no padding goes over the wire
};

HostFacts this_host();

// Facts of all ranks, in rank order, on every rank.
Result<std::vector<HostFacts>> gather_hosts(transport::Communicator& world,
                                            const transport::WaitPolicy& policy);

// For people: how many ranks on which hosts, then what machine they have, one line for each kind:
// "2 ranks on 1 host (node-a: 2)", "all ranks alike: Fast Processor, 8 cores, ...". Pure.
std::vector<std::string> summary_lines(const std::vector<HostFacts>& hosts);

}  // namespace cox::detail
