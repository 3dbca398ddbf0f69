#include "coordinator/core/ballot.h"

#include <algorithm>
#include <cmath>

namespace cox {
namespace {

// A number that is no magnitude counts as unknown.
double known_amax(double amax) {
  return std::isfinite(amax) && amax > 0 ? amax : 0;
}

}  // namespace

void merge_into(StepBallot& into, const StepBallot& from) {
  into.loss_sum += from.loss_sum;
  into.weight += from.weight;
  into.samples += from.samples;
  into.nonfinite_ranks += from.nonfinite_ranks;
  into.overflow_ranks += from.overflow_ranks;
  into.active_ranks += from.active_ranks;
  into.buffers_from_min = std::min(into.buffers_from_min, from.buffers_from_min);
  into.repeat_max = std::max(into.repeat_max, from.repeat_max);
  into.amax_max = std::max(known_amax(into.amax_max), known_amax(from.amax_max));
  into.plan_held_min = std::min(into.plan_held_min, from.plan_held_min);
  into.round_closed_min = std::min(into.round_closed_min, from.round_closed_min);
  into.mask_waits_max = std::max(into.mask_waits_max, from.mask_waits_max);
  into.mask_lane_min = std::min(into.mask_lane_min, from.mask_lane_min);
  into.stop_max = std::max(into.stop_max, from.stop_max);
  into.fingerprint_min = std::min(into.fingerprint_min, from.fingerprint_min);
  into.fingerprint_max = std::max(into.fingerprint_max, from.fingerprint_max);
  merge_into(into.arrival, from.arrival);
  into.clocks_due_max = std::max(into.clocks_due_max, from.clocks_due_max);
  into.save_stage_min = std::min(into.save_stage_min, from.save_stage_min);
  into.save_failed_max = std::max(into.save_failed_max, from.save_failed_max);
}

}  // namespace cox
