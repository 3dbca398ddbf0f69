// `cox plan`: says what memory budgets cost, of a saved profile, of each instance in a file, or of
// the operators of a step.
// Prints to standard output; what comes from files is printed without control characters.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::tools {

// Sizes as in settings: "6GiB". REQUIRES: one of `profile`, `instances` and `operators` is given.
struct PlanRequest {
  std::string profile;  // memory_profile.json, or the run directory that has it
  std::string instances;
  std::string operators;  // a file of io/operator_files.h; without budgets, some are chosen
  std::vector<std::string> budgets;
};

// Whether plans fit: `nothing` where each budget that was asked for is below the least peak of some
// kind of rank, or of each instance.
enum class Fit { something, nothing };
Result<Fit> plan_command(const PlanRequest& request);

}  // namespace cox::tools
