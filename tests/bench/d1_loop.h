// Our side of D1: a loop with a cox::Reducer, a number of steps at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "tests/bench/d1_overlap.h"
#include "tests/bench/d1_task.h"

namespace cox::bench {

struct D1Turn {
  double seconds = 0;          // all steps but the first
  double cpu_seconds = 0;      // this process, in the same steps
  std::vector<double> losses;  // every step, averaged over ranks
  D1Overlap overlap;           // all steps but the first
  std::string text() const;    // one line of JSON
};

class D1Loop {
 public:
  // Collective.
  D1Loop(Session& session, D1Task task, std::int64_t rows);
  // Collective: all ranks take the same number of steps.
  D1Turn turn(int steps);

 private:
  double step();

  Session& session_;
  D1Task task_;
  D1Slot slot_;
  AdamW optimizer_;
  Reducer reducer_;
  std::int64_t next_ = 0;
};

}  // namespace cox::bench
