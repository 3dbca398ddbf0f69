// First half of C2: microseconds and heap allocations of Coxswain's calls on the training thread.
#pragma once

#include <string>

#include "coxswain/session.h"
#include "tests/bench/line.h"

namespace cox::bench {

enum class Workload { watching, training };

// Facts about the run for the printed lines.
struct CallsTold {
  std::string where;
  std::string path;  // control.path
  double limit_us = 0;
};

// Prints lines on rank 0. Collective; once a session.
void measure_calls(Session& session, Workload workload, const CallsTold& told, Effort effort);

}  // namespace cox::bench
