// The first depth of use with the installed package: a user's own loop, only watched. The program
// of docs/use-it.md, built by use_it.py, includes every header and trains.
#include <coxswain/session.h>

#include <cstdio>

#include "coordinator/core/plan.h"

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
  const bool is_right = alone && loss == 1;
  std::printf("%s\n", is_right ? "ok" : "not ok");
  return is_right ? 0 : 1;
}
