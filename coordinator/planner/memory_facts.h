// Turns the problems measured by all ranks into the coordinator's MemoryFacts: one front per kind
// of rank. Ranks are of one kind when their bytes and samples are equal. Times always differ a
// little; the facts have the slowest rank's times. Runs on rank 0, once, before the first round.
// Pure.
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

// RankProfile is the measured problem of ranks with equal bytes and samples.
struct RankProfile {
  std::vector<std::int32_t> ranks;       // ranks with this problem
  std::vector<std::string> stage_names;  // one per stage of the problem
  MemoryProblem problem;
  std::int64_t limit_bytes = 0;  // limit of the device or the rank's share of a node; 0 = unknown
  friend bool operator==(const RankProfile&, const RankProfile&) = default;
};

struct MemoryProfile {
  std::vector<RankProfile> profiles;
  friend bool operator==(const MemoryProfile&, const MemoryProfile&) = default;
};

// RankProblem is the contribution of one rank. `problem` has no stages if nothing could be
// measured.
struct RankProblem {
  static constexpr std::uint32_t kVersion = 1;
  MemoryProblem problem;
  std::int64_t limit_bytes = 0;  // limit of the device or the rank's share of a node; 0 = unknown
  std::uint64_t samples = 0;     // in the measured step; 0 = bytes do not depend on samples

  static auto fields(auto& self) {
    return message("RankProblem", field(1, "problem", self.problem),
                   field(2, "limit_bytes", self.limit_bytes), field(3, "samples", self.samples));
  }
};

// Returns the facts for JobFacts. `ranks` has one entry per rank; a rank without a problem counts
// as the first kind. Plans per stage, in forward order, become plans for the job's `blocks` blocks,
// by index. A block without a stage is kept. Errors: invalid_argument for stages that do not match
// the blocks; failed_precondition when no rank has a problem or there are more than
// kMaxMemoryModels kinds; those of solve_front().
Result<MemoryFacts> memory_facts(std::vector<RankProblem> ranks, std::size_t blocks,
                                 const FrontLimits& limits = {});

// Converts actions of stages into actions of `blocks` blocks, and the reverse. Stages stand in
// forward order, blocks in the order of registration. Blocks that did not run and gaps between
// blocks are kept.
std::vector<MemoryAction> per_block(const MemoryProblem& problem, std::size_t blocks,
                                    const std::vector<MemoryAction>& per_stage);
std::vector<MemoryAction> per_stage(const MemoryProblem& problem,
                                    const std::vector<MemoryAction>& per_block);

// Returns the parts of the least peak of a rank with this problem: bytes outside of blocks, and the
// largest blocks by name. `model` is the problem's model in the MemoryFacts. `blocks` holds the
// names of the blocks by index.
std::string least_peak_text(const MemoryProblem& problem, const MemoryModel& model,
                            const std::vector<std::string>& blocks);

// Returns "5120 MiB", "12.3 MiB" or "0.004 MiB".
std::string mib_text(std::int64_t bytes);

// Returns the ranks as a profile for a file (records/planning_files.h), with one entry per kind.
// `blocks` holds the names of the blocks by index.
MemoryProfile profile_of(std::vector<RankProblem> ranks, const std::vector<std::string>& blocks);

}  // namespace cox::planner
