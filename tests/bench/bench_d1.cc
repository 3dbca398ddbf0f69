// D1, our side. d1.py runs it beside ddp_peer.py and tells whose turn it is.
//
//   bench_d1 task FOLDER TEXT                                 writes what both sides train
//   mpiexec -n N bench_d1 turns FOLDER PIPES ROWS [--cox...]  takes turns until told to quit
//
// In turns, each rank reads "turn VARIANT STEPS" or "quit" from PIPES/RANK.in and answers with one
// line of JSON in PIPES/RANK.out. A rank that waits for its turn sleeps in read().
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "coxswain/coxswain.h"
#include "tests/bench/d1_loop.h"

namespace {

using namespace cox;

void take_turns(bench::D1Loop& loop, const std::string& pipe) {
  std::ifstream orders(pipe + ".in");
  std::ofstream answers(pipe + ".out");
  answers << "{}" << std::endl;
  for (std::string line; std::getline(orders, line);) {
    std::istringstream words(line);
    std::string order;
    std::string variant;
    int steps = 0;
    words >> order >> variant >> steps;
    if (order != "turn" || steps < 1) return;
    answers << loop.turn(steps).text() << std::endl;
  }
}

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
  take_turns(loop, words[2] + "/" + std::to_string(session.rank()));
  session.finish();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const cox::Error& error) {
    return cox::report(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
