// `cox plan`: says what memory budgets cost, of a saved profile or of each instance in a file.
// Prints to standard output.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::tools {

// Sizes as in settings: "6GiB". REQUIRES: one of `profile` and `instances` is empty.
struct PlanRequest {
  std::string profile;
  std::string instances;
  std::vector<std::string> budgets;
};
Status plan_command(const PlanRequest& request);

}  // namespace cox::tools
