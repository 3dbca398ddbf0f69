// What policy `precision` says to people. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "coordinator/core/policy.h"
#include "coordinator/policies/precision_round.h"

namespace cox {

// Neighbouring blocks of which the same is said.
struct BlockRun {
  std::size_t first = 0;
  std::size_t count = 1;
};

// "block head", "blocks h.0 to h.11".
std::string name_of(const JobFacts& job, BlockRun run);

// Why blocks have the format that they start with.
Reason start_reason(const PolicyInput& input, BlockRun run, const Leeway& leeway,
                    const BaseFormat& base);
// Why blocks that start in `now` will not go to 8 bits; empty where they may.
std::optional<Reason> no_8_bits_reason(const PolicyInput& input, BlockRun run, FormatVeto veto,
                                       Precision now);

// Why a block, or a run of which `move` is the first, changes.
Reason move_reason(const PolicyInput& input, BlockRun run, const BlockMove& move,
                   const BlockNotes& notes, const std::optional<ComputeStraggler>& straggler);
// Trouble in a block that must stay as it is.
Reason held_reason(const PolicyInput& input, const BlockMove& move);
Reason request_reason(const PolicyInput& input, const RequestEvent& event);
Reason wait_reason(const PolicyInput& input, const BlockWaits& waits);

}  // namespace cox
