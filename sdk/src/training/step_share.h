// StepShare: which samples of a step this rank computes, and in which micro-batches. The batch of a
// step is cut into micro-batches (whole ones but for the last), and ranks get contiguous runs of
// them in proportion to their shares; without a micro-batch the unit is one sample and a rank's
// samples are one micro-batch. A pure function of numbers that all ranks agree on.
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coxswain/sample_plan.h"

namespace cox::detail {

struct ShareRequest {
  std::uint64_t cursor = 0;
  std::int64_t step_samples = 0;          // wanted; fewer at the end of an epoch
  std::int64_t micro_batch = 0;           // samples; 0 = a rank's samples at once
  std::span<const std::uint32_t> shares;  // relative, one a rank; empty = even
  RankId rank{};
  std::int32_t world_size = 1;
};

struct StepShare {
  SampleBatch step;                     // of all ranks
  SampleSlice slice;                    // this rank's, from the start of the batch
  std::int64_t micro_batch = 0;         // samples; 0 = none of a fixed size
  std::uint64_t micro_batches = 0;      // of all ranks
  std::uint64_t most_on_a_rank = 0;     // micro-batches
  std::uint64_t first_micro_batch = 0;  // of this rank, counted over all ranks
  std::uint64_t own_micro_batches = 0;

  // The i-th micro-batch of this rank, from the start of its slice.
  SampleSlice part(std::uint64_t i) const;
};

Result<StepShare> share_of(const SamplePlan& plan, const ShareRequest& request);

}  // namespace cox::detail
