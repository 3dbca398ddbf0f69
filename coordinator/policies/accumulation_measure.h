// What policy `accumulation` measures in a round: what synchronising cost, what the slowest rank
// worked, and which anchor would meet the target (accumulation.h has the formula). Rounds of
// another plan, and those in which something was done twice, tell nothing about this one and are
// left out. Pure apart from the notes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/core/policy.h"
#include "coordinator/policies/accumulation_batch.h"
#include "coordinator/policies/accumulation_notes.h"

namespace cox {

// Ranks whose speeds are to be kept: all where policy `shares` moves work to where the speed is,
// else none.
std::size_t ranks_kept(const PolicyInput& input);

// Adds what this round tells to the notes. Linear in ranks. Requires: a job with micro-batches.
void measure_round(const PolicyInput& input, AccumulationNotes& notes);

// By measured speeds where those decide about shares, else as the shares of the plan are.
RankRatios ratios_now(const PolicyInput& input, AccumulationNotes& notes);

// Micro-batches of the slowest rank under the newest plan; need not be whole.
double anchor_now(const PolicyInput& input, const RankRatios& ratios);

}  // namespace cox
