// StepBallot: the few numbers that the ranks of a trainer agree on in every step, merged by the
// step's small all-reduce. The completed all-reduce is the round. Each action of all ranks in the
// same round follows from the merged ballot, so no rank can differ. Pure values.
#pragma once

#include <cstdint>
#include <type_traits>

#include "coordinator/core/arrival.h"
#include "coordinator/core/units.h"

namespace cox {

// The state of the broadcast of masks over NCCL on a rank. The least of all ranks counts.
enum class MaskLane : std::uint64_t {
  failed = 0,  // NCCL has failed on a rank: all ranks leave NCCL together
  busy = 1,    // the last broadcast is not over
  free = 2,    // another broadcast may start
};

struct StepBallot {
  double loss_sum = 0;  // weight x mean loss
  double weight = 0;    // samples (or tokens) behind loss_sum and the gradients
  std::uint64_t samples = 0;
  std::uint64_t nonfinite_ranks = 0;       // ranks whose loss was not finite
  std::uint64_t overflow_ranks = 0;        // ranks whose own gradients are not all finite
  std::uint64_t active_ranks = 0;          // ranks with steps of their own left; 0 = all only join
  std::uint64_t buffers_from_min = ~0ull;  // lowest rank whose buffers changed; ~0 = none
  // 1 = repeat the step, because an exact sum was out of range or a rank ran out of memory.
  std::uint64_t repeat_max = 0;
  double amax_max = 0;                      // largest finite scaled gradient in fp16; 0 = not known
  std::uint64_t plan_held_min = 0;          // newest plan number that every rank holds
  std::uint64_t round_closed_min = 0;       // 1 = the rank's last control round is over
  std::uint64_t mask_waits_max = 0;         // 1 = rank 0 has a frame for the other ranks
  MaskLane mask_lane_min = MaskLane::free;  // of masks over NCCL; free if masks do not use NCCL
  std::uint64_t stop_max = 0;               // 1 = a rank was asked to stop (SIGTERM, end of job)
  std::uint64_t fingerprint_min = 0;        // of equal values (step, cursor, plan) ...
  std::uint64_t fingerprint_max = 0;        // ... so min != max shows a divergence
  ArrivalStamp arrival;              // when the last rank had given all its parts of the reduction
  std::uint64_t clocks_due_max = 0;  // 1 = compare the clocks of nodes again
  std::uint64_t save_stage_min = ~0ull;  // the rank's stage of a save; ~0 = no save
  std::uint64_t save_failed_max = 0;     // 1 + a rank whose work for the save failed; 0 = none
};
static_assert(std::is_trivially_copyable_v<StepBallot>);

// Adds sums, keeps minima and maxima. Sums are added in the order into + from, so a fold over
// ascending ranks gives the same bits on every rank.
void merge_into(StepBallot& into, const StepBallot& from);

}  // namespace cox
