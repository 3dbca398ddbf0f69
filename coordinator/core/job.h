// JobFacts: what is fixed for one incarnation of a job and known before its first round. An input
// of Decide (journalled), and what a plan is validated against. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/memory_action.h"
#include "coordinator/core/memory_front.h"
#include "coordinator/core/units.h"

namespace cox {

// Values are part of the mask: two bits each, never renumber.
enum class Precision : std::uint8_t { fp32 = 0, bf16 = 1, fp16 = 2, fp8 = 3 };

inline constexpr std::array<std::string_view, 4> kPrecisionNames = {"fp32", "bf16", "fp16", "fp8"};
constexpr std::string_view to_string(Precision p) {
  return kPrecisionNames[static_cast<std::size_t>(p)];
}

// What the linked SDK can carry out; decide clamps everything else, and says so.
struct Capabilities {
  std::uint8_t precisions = 1;  // bit p set = Precision p can be applied
  std::uint8_t actions = 1;     // bit a set = MemoryAction a can be applied
  bool shares = false;          // this job's loop takes its batch from the plan
  bool cadence = false;
  bool rollback = false;  // snapshots are being taken

  bool can(Precision p) const { return (precisions >> static_cast<unsigned>(p)) & 1u; }
  bool can(MemoryAction a) const { return (actions >> static_cast<unsigned>(a)) & 1u; }
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

struct JobFacts {
  std::string name;
  std::uint32_t incarnation = 0;     // 1 for the first start, +1 for every restart
  std::int32_t world_size = 1;       // 1 .. kMaxRanks
  std::vector<NodeId> node_of_rank;  // one per rank; empty = all on one node
  std::vector<std::string> blocks;   // names in execution order, <= kMaxBlocks
  std::uint64_t global_batch = 0;    // samples per step; 0 = the loop's own business
  Capabilities capabilities{};
  MemoryFacts memory;  // rank 0 only

  friend bool operator==(const JobFacts&, const JobFacts&) = default;
};

}  // namespace cox
