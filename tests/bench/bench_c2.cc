// C2: the cost of Coxswain on the training thread. Under mpiexec, with settings as --cox flags:
//
//   bench_c2 watching|training|growth|demo [--quick] --cox.control.path=mailbox ...
#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "coxswain/coxswain.h"
#include "tests/bench/c2_calls.h"
#include "tests/bench/c2_growth.h"
#include "tests/bench/session_main.h"

namespace {

using namespace cox;
using bench::CallsTold;
using bench::Workload;

const char* path_of(const Session& session) {
  switch (session.config().control.path) {
    case ControlPath::mailbox:
      return "mailbox";
    case ControlPath::mpi:
      return "mpi";
    default:
      return "automatic";
  }
}

void measure(Session& session) {
  at::set_num_threads(1);
  const auto& words = session.arguments();
  const auto said = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const auto effort = said("--quick") ? bench::Effort::quick : bench::Effort::full;
  const double training_us = session.config().control.path == ControlPath::mpi ? 30 : 10;
  const CallsTold told{
      said("watching") ? "500 us of work a step" : "training steps of a small GPT-2",
      path_of(session), said("watching") ? 1 : training_us};
  if (said("growth") || said("demo")) {
    const auto which = said("demo") ? bench::GrowingStep::demo : bench::GrowingStep::small;
    bench::measure_growth(session, which, effort);
  } else if (said("watching") || said("training")) {
    const auto workload = said("watching") ? Workload::watching : Workload::training;
    bench::measure_calls(session, workload, told, effort);
  } else {
    throw Error(invalid_argument(
        "bench_c2: expected watching, training, growth or demo, found none of them"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, {.program = "bench_c2"}, measure);
}
