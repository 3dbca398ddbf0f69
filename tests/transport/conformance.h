// What every transport must do, as cases that each rank runs on its end of a communicator. A case
// returns an empty text, or what went wrong on this rank; it never throws, so that ranks that are
// threads or processes both report and go on.
#pragma once

#include <string>
#include <vector>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

struct ConformanceCase {
  const char* name;
  std::string (*run)(Communicator& communicator);
};

const std::vector<ConformanceCase>& conformance_cases();

}  // namespace cox::transport
