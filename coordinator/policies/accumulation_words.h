// What policy `accumulation` says: sentences with numbers for its reasons. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/job.h"
#include "coordinator/policies/accumulation_notes.h"

namespace cox {

// Why it can do nothing in this job; empty when it can.
std::string why_unable(const JobFacts& job);

// "... takes 23.1 % of a step (4.6 ms of 20.1 ms)".
std::string overhead_words(const SyncCost& cost);

// The batch of that many micro-batches against the job's, and what common rules make of it for the
// learning rate. A hint: nothing changes the learning rate.
std::string batch_words(std::uint64_t micro_batches, const JobFacts& job);

}  // namespace cox
