// JobFacts: the facts that are fixed for one incarnation of a job and known before its first round.
// An input of Decide (journalled); plans are validated against the facts. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/units.h"

namespace cox {

// Capabilities are the changes that the linked SDK can apply. Decide clamps or vetoes all others,
// with a reason.
struct Capabilities {
  PrecisionSet precisions = only(Precision::fp32);  // formats that can be applied
  ActionSet actions = only(MemoryAction::keep);     // actions that can be applied
  bool shares = false;                              // the job's loop takes its batch from the plan
  bool accumulation = false;  // the job's loop takes the samples of a step from the plan
  bool rollback = false;      // snapshots are being taken

  bool can(Precision p) const { return contains(precisions, p); }
  bool can(MemoryAction a) const { return contains(actions, a); }
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

struct JobFacts {
  std::string name;
  std::uint32_t incarnation = 0;     // 1 for the first start, +1 for every restart
  std::int32_t world_size = 1;       // 1 .. kMaxRanks
  std::vector<NodeId> node_of_rank;  // one per rank; empty = all on one node
  std::vector<std::string> blocks;   // names in execution order, <= kMaxBlocks
  std::uint64_t global_batch = 0;    // samples per step; 0 = the loop decides
  std::uint64_t micro_batch = 0;     // samples; a share is a multiple; 0 = of any size
  Capabilities capabilities{};
  MemoryFacts memory;        // rank 0 only
  PrecisionFacts precision;  // rank 0 only

  std::size_t ranks() const { return static_cast<std::size_t>(world_size); }
  friend bool operator==(const JobFacts&, const JobFacts&) = default;
};

}  // namespace cox
