// D1, our side. d1.py runs it beside ddp_peer.py and gives both their turns.
//
//   bench_d1 task FOLDER TEXT                                 writes the task of both sides
//   mpiexec -n N bench_d1 turns FOLDER PIPES ROWS [--cox...]  takes turns until told to quit
//
// Orders and answers: orders.h, in PIPES/RANK.
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "coxswain/coxswain.h"
#include "tests/bench/d1_loop.h"
#include "tests/bench/orders.h"
#include "tests/bench/session_main.h"

namespace {

using namespace cox;

void take_turns(Session& session) {
  const auto& words = session.arguments();
  if (words.size() != 4 || words[0] != "turns") {
    throw Error(invalid_argument("bench_d1: expected task FOLDER TEXT or turns FOLDER PIPES ROWS"));
  }
  bench::D1Loop loop(session, bench::read_d1_task(words[1]), std::stoll(words[3]));
  bench::take_turns(words[2] + "/" + std::to_string(session.rank()),
                    [&](int steps) { return loop.turn(steps).text(); });
}

int write_task(const std::string& folder, const std::string& text) {
  try {
    bench::write_d1_task(folder, text, {});
    return 0;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "task") return write_task(argv[2], argv[3]);
  return cox::bench::session_main(argc, argv, {.program = "bench_d1"}, take_turns);
}
