// What policy `shares` says: sentences with units and times. Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/policies/shares_choice.h"

namespace cox {

std::string milliseconds(double seconds);  // "12.3 ms"

// "rank 2 takes 6 micro-batches instead of 16 (3.10 ms each), rank 0 20 instead of 16 (...)": those
// that move most first, four at most. Requires: an assignment of the problem that moves something.
enum class Times { measured, hinted };
std::string moves_text(const SharesProblem& shares, const ShareAssignment& assignment, Times times);

// "; rank 3 is held to 12 samples by its cap", ... ; empty without any.
std::string held_text(const SharesProblem& shares, const std::vector<std::size_t>& held);

// "a unit is a micro-batch of 4 samples" or "a unit is a sample".
std::string unit_text(const SharesProblem& shares);

}  // namespace cox
