// Training loops as users write them, for comparing each adopted loop with its plain form.
#pragma once

#include <functional>
#include <vector>

#include "tests/sdk/training/loop_trace.h"

namespace cox::test {

struct Written {
  const char* name;
  std::function<void(const Adopt&, LoopTrace&)> run;
};

std::vector<Written> written_loops();

}  // namespace cox::test
