// The first depth of use, against the installed package: a loop of one's own that is only watched;
// and a step that trains (train.cc).
#include <coxswain/session.h>

#include <cstdio>

#include "coordinator/core/plan.h"

bool tiles_compute();

int main(int argc, char** argv) {
  cox::SessionOptions options;
  options.program = "watch";
  options.config.http.enabled = false;
  auto session = cox::Session::start(argc, argv, options);
  double loss = 8;
  for (int i = 0; i < 3; ++i) {
    auto step = session.step();
    {
      auto compute = step.phase(cox::Phase::compute);
      loss /= 2;
    }
    step.loss(loss, 4);
  }
  const bool alone = session.rank() == 0 && session.world_size() == 1;
  session.finish();
  const bool is_right = alone && loss == 1 && tiles_compute();
  std::printf("%s\n", is_right ? "ok" : "not ok");
  return is_right ? 0 : 1;
}
