// The duties of every transport, as cases. Each rank runs a case on its end of a communicator. A
// case returns this rank's error, empty on success, and never throws, so that all ranks report and
// go on.
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
