// Turns the problems that all ranks measured into what the coordinator knows of their memory: one
// front per kind of rank. Ranks are of one kind when their bytes and samples are equal; their
// times, which always differ a little, are taken from the slowest. Runs on rank 0, once, before the
// first round. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/memory_front.h"
#include "coordinator/core/status.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {

// RankProfile is the measured problem of a group of ranks with equal bytes and samples.
struct RankProfile {
  std::vector<std::int32_t> ranks;       // that it holds for
  std::vector<std::string> stage_names;  // one per stage of the problem
  MemoryProblem problem;
  std::int64_t limit_bytes = 0;  // of the device or its share of a node; 0 = unknown
  friend bool operator==(const RankProfile&, const RankProfile&) = default;
};

struct MemoryProfile {
  std::vector<RankProfile> profiles;
  friend bool operator==(const MemoryProfile&, const MemoryProfile&) = default;
};

// RankProblem is the contribution of one rank. Its `problem` has no stages where nothing could be
// measured.
struct RankProblem {
  static constexpr std::uint32_t kVersion = 1;
  MemoryProblem problem;
  std::int64_t limit_bytes = 0;  // of its device or its share of a node; 0 = unknown
  std::uint64_t samples = 0;     // of the step that was measured; 0 = bytes do not depend on them

  static auto fields(auto& self) {
    return message("RankProblem", field(1, "problem", self.problem),
                   field(2, "limit_bytes", self.limit_bytes), field(3, "samples", self.samples));
  }
};

// Returns the facts for JobFacts. `ranks` has one entry per rank; a rank without a problem is taken
// to be of the first kind. Plans per stage, in forward order, become plans for the job's `blocks`
// blocks, by index; a block without a stage is kept. Errors: invalid_argument for stages that do
// not fit the blocks, failed_precondition when no rank has a problem, or when there are more than
// kMaxMemoryModels kinds; those of solve_front().
Result<MemoryFacts> memory_facts(std::vector<RankProblem> ranks, std::size_t blocks,
                                 const FrontLimits& limits = {});

// Return the actions of `blocks` blocks under these actions of the stages, and the reverse. Stages
// stand in the order of the forward pass, blocks in that of their registration. A block that did
// not run is kept, and so are gaps between blocks.
std::vector<MemoryAction> per_block(const MemoryProblem& problem, std::size_t blocks,
                                    const std::vector<MemoryAction>& per_stage);
std::vector<MemoryAction> per_stage(const MemoryProblem& problem,
                                    const std::vector<MemoryAction>& per_block);

// Returns what makes up the least peak of a rank with this problem: what lies outside of blocks,
// and the largest blocks by name. `model`: the one of `facts` that it is of. `blocks` has the names
// of the blocks by index.
std::string least_peak_text(const MemoryProblem& problem, const MemoryModel& model,
                            const std::vector<std::string>& blocks);

// "5120 MiB", "12.3 MiB", "0.004 MiB".
std::string mib_text(std::int64_t bytes);

// Returns the same ranks as a profile for a file (records/planning_files.h), one entry per kind of
// rank. `blocks` has the names of the blocks by index.
MemoryProfile profile_of(std::vector<RankProblem> ranks, const std::vector<std::string>& blocks);

}  // namespace cox::planner
