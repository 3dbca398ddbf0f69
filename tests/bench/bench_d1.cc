// D1, our side. d1.py runs it beside ddp_peer.py and tells whose turn it is.
//
//   bench_d1 task FOLDER TEXT                                 writes what both sides train
//   mpiexec -n N bench_d1 turns FOLDER PIPES ROWS [--cox...]  takes turns until told to quit
//
// Orders and answers: orders.h, in PIPES/RANK.
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "coxswain/coxswain.h"
#include "tests/bench/d1_loop.h"
#include "tests/bench/orders.h"

namespace {

using namespace cox;

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "task" && argc == 4) {
    bench::write_d1_task(argv[2], argv[3], {});
    return 0;
  }
  auto session = Session::start(argc, argv, {.program = "bench_d1"});
  const auto& words = session.arguments();
  if (mode != "turns" || words.size() != 4) {
    throw Error(invalid_argument("bench_d1: expected task FOLDER TEXT or turns FOLDER PIPES ROWS"));
  }
  bench::D1Loop loop(session, bench::read_d1_task(words[1]), std::stoll(words[3]));
  bench::take_turns(words[2] + "/" + std::to_string(session.rank()),
                    [&](int steps) { return loop.turn(steps).text(); });
  session.finish();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return cox::report(error);
  }
}
