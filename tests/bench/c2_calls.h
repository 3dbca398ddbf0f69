// First half of C2: microseconds and heap allocations of Coxswain's calls on the training thread.
#pragma once

#include <string>

#include "coxswain/session.h"
#include "tests/bench/line.h"

namespace cox::bench {

enum class Workload { watching, training };

// What the printed lines say about the run.
struct CallsTold {
  std::string where;
  std::string path;  // of the control plane
  double limit_us = 0;
};

// Collective; once a session. Rank 0 prints lines.
void measure_calls(Session& session, Workload workload, const CallsTold& told, Effort effort);

}  // namespace cox::bench
