// Codec of plans as the compact bytes of masks. The table of core/plan_fields.h drives the codec. A
// full payload is a table of blocks, then entries. A block takes 4 bits (precision and the action
// of profile 0), or 8 if a block has a level of recompute; the frame's header has the width. A
// delta is the check of its base, then entries. An entry is a field's id, a length and so many
// bytes. Entries have ascending ids; an entry that would change nothing is left out. Formats in
// docs/wire-format.md. Pure functions; readers treat the bytes as hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"

namespace cox::wire {

// BlockBits is the width of a block in the payloads of a plan. Values are part of the formats.
enum class BlockBits : std::uint8_t {
  four = 4,   // two of precision, two of the action: no action is a level of recompute
  eight = 8,  // two of precision, then the action
};
// Returns the width that the plan is written with.
BlockBits block_bits(const Plan& plan);

// Returns invalid_argument if the vectors of a plan do not fit together or exceed the format's
// limits.
Status check_shape(const Plan& plan);

// Return the plan's bytes without ids and rounds, which the headers of a mask's frames carry.
// REQUIRES: check_shape(plan) is ok. For a delta, both plans have the same number of blocks.
std::vector<std::byte> full_payload(const Plan& plan);
std::vector<std::byte> delta_payload(const Plan& plan, const Plan& base);

// JobSize is the size of a job. Readers refuse more parts than the job has, so hostile bytes cannot
// cause larger allocations.
struct JobSize {
  std::size_t ranks = static_cast<std::size_t>(kMaxRanks);
  std::size_t blocks = kMaxBlocks;

  constexpr std::size_t faults() const { return 16 * ranks + 4096; }
  constexpr std::size_t reasons() const { return 4 * ranks + 65536; }
};
JobSize size_of(const JobFacts& job);

// Reads a payload for exactly size.blocks blocks. Returns data_loss for malformed bytes and for
// actions that do not exist. validate() checks whether the plan fits a job.
Result<Plan> read_full_payload(std::span<const std::byte> payload, const JobSize& size,
                               BlockBits bits);
// Applies the payload to `base` and returns the result. Returns failed_precondition if the payload
// was made against another base.
Result<Plan> read_delta_payload(std::span<const std::byte> payload, Plan base, const JobSize& size,
                                BlockBits bits);

// Returns a size that no payload for this job exceeds.
std::size_t max_payload_bytes(const JobFacts& job);

}  // namespace cox::wire
