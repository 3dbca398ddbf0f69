// HostFacts is one rank's machine. The ranks of a job gather their facts at the start, and rank 0
// logs hosts and machines. Training thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/session/device_place.h"

namespace cox::detail {

// HostFacts has a fixed size, so that ranks can gather the facts.
struct HostFacts {
  char host[64] = {};
  char processor[64] = {};
  std::uint64_t memory_bytes = 0;
  std::int32_t cores = 0;    // usable by this process
  std::int32_t threads = 0;  // threads of torch's computations
  std::int32_t cuda_devices = 0;
  std::int32_t unused = 0;  // no padding goes over the wire
  char device[64] = {};     // the device that the rank trains on; empty on the CPU
  std::uint64_t device_bytes = 0;
};

HostFacts this_host();

// Returns lines for people. The first line is the number of ranks on each host: "2 ranks on 1 host
// (node-a: 2)". Then comes one line for each kind of machine: "all ranks alike: Fast Processor, 8
// cores, ...". Devices follow likewise, if there are any: "all ranks train on Fast Device, 80.0
// GiB". Pure.
std::vector<std::string> summary_lines(const std::vector<HostFacts>& hosts);

// Logs hosts and machines on rank 0. `place` is where this rank trains. Collective. Throws
// cox::Error.
void log_hosts(transport::Communicator& all, const DevicePlace& place, const Log& log);

}  // namespace cox::detail
