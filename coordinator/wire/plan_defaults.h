// What the entries that a full mask leaves out mean, and the caps of its entries. Frozen with the
// version of the mask: a new default in core is written out, it does not change these. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/core/plan.h"

namespace cox::wire {

inline constexpr std::size_t kMaxClasses = 65536;

// How a class beyond the first is written.
enum class ClassForm : std::uint8_t { packed = 0, changes = 1 };

inline constexpr ScalerRules kAbsentScaler{.initial_scale = 65536.0f,
                                           .growth_factor = 2.0f,
                                           .backoff_factor = 0.5f,
                                           .growth_interval = 2000,
                                           .min_scale = 1.0f,
                                           .max_scale = 16777216.0f,
                                           .hysteresis = 1,
                                           .headroom_bits = 1};

// One class of `keep`, fp32, all ranks alike, even shares, the job's batch, every step averaged, no
// hold, no order.
inline Plan plan_of_absent_entries(std::size_t blocks) {
  Plan plan;
  plan.precision.assign(blocks, Precision::fp32);
  plan.classes.assign(1, std::vector<MemoryAction>(blocks, MemoryAction::keep));
  plan.cadence_steps = 1;
  plan.scaler = kAbsentScaler;
  return plan;
}

}  // namespace cox::wire
