// Plays a simulated job whose troubles give findings of every severity, and serves its pages until
// standard input closes:
//   cox_metrics_serve [rounds per second, default 20] [blocks, default 14]
// Prints the address as the first line.
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "metrics/findings_watch.h"
#include "metrics/http/http_server.h"
#include "metrics/topics/memory.h"
#include "simulated_job.h"

namespace {

using namespace cox::metrics;

constexpr int kPlayed = 120;  // rounds before the pages are served

SimulatedSetup setup_of(double step_seconds) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  SimulatedSetup setup;
  setup.numerics = true;
  setup.uneven = true;
  setup.troubled = true;
  setup.start = now.count() - kPlayed * step_seconds;
  setup.step_seconds = step_seconds;
  return setup;
}

int serve(const SimulatedSetup& setup) {
  SimulatedJob job(setup);
  TelemetryState state(job.job(), cox::UnixTime{setup.start}, {"0.1.0", "test"},
                       kSimulatedPeakFlops);
  state.set(std::make_shared<const HeldBytes>(HeldBytes{1 << 28, 1 << 28, 1 << 29, 1 << 28}));
  FindingsWatch watch(state, [&state](FindingsWatch::Found found) { state.set(std::move(found)); });
  job.steps(watch, kPlayed);
  watch.look();
  job.step(watch);
  cox::Config config;
  config.http.port = 0;
  const auto server = HttpServer::start(config, state);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().text().c_str());
    return 1;
  }
  std::printf("%s\n", (*server)->url().c_str());
  std::fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (::poll(&input, 1, static_cast<int>(1000 * setup.step_seconds)) == 0) {
    job.nonfinite = job.round() % 50 == 49;
    job.step(watch);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double rounds_per_second = argc > 1 ? std::atof(argv[1]) : 20;
  SimulatedSetup setup = setup_of(1 / rounds_per_second);
  if (argc > 2) setup.blocks = static_cast<std::size_t>(std::atoi(argv[2]));
  return serve(setup);
}
