// The payload of a mask: what all its frames carry, one after another. A full payload is the table
// of 4 bits a block, then entries; a delta is the check of its base, then entries. An entry is a
// type, a length and its bytes; entries stand in ascending order of type and are left out when they
// say what is true without them. Pure; the readers treat their bytes as hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"

namespace cox::wire {

// Types of entries. Part of the format: never renumber.
enum class PlanEntry : std::uint8_t {
  unspecified = 0,
  blocks = 1,  // delta only: blocks whose precision or class-0 action changed
  classes = 2,
  rank_class = 3,
  shares = 4,
  cadence = 5,
  scaler = 6,
  hold = 7,
  rollback = 8,
  step_samples = 9,
};

// invalid_argument when the vectors of a plan do not fit together or exceed what the mask carries.
Status check_shape(const Plan& plan);

// Require: check_shape(plan), and for a delta the same number of blocks in both.
std::vector<std::byte> full_payload(const Plan& plan);
std::vector<std::byte> delta_payload(const Plan& plan, const Plan& base);

// Equal for plans with equal content (ids and rounds aside); tells a wrong base of a delta.
std::uint32_t content_check(const Plan& plan);

// Everything but id and earliest_round, which the head carries. data_loss on malformed bytes.
Result<Plan> read_full_payload(std::span<const std::byte> payload, const JobFacts& job);
// `base` becomes the new plan. failed_precondition when the payload was made against another base.
Result<Plan> read_delta_payload(std::span<const std::byte> payload, Plan base, const JobFacts& job);

// No payload for this job is longer.
std::size_t max_payload_bytes(const JobFacts& job);

}  // namespace cox::wire
