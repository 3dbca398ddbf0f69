// Plays a simulated job and serves its pages until standard input closes:
//   cox_metrics_serve [rounds per second, default 20] [blocks, default 14]
// Prints the address as the first line.
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "metrics/http_server.h"
#include "simulated_job.h"

int main(int argc, char** argv) {
  using namespace cox::metrics;
  const double rounds_per_second = argc > 1 ? std::atof(argv[1]) : 20;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  SimulatedSetup setup;
  setup.numerics = true;
  setup.uneven = true;
  if (argc > 2) setup.blocks = static_cast<std::size_t>(std::atoi(argv[2]));
  setup.start = now.count();
  setup.step_seconds = 1 / rounds_per_second;
  SimulatedJob job(setup);
  TelemetryState state(job.job(), cox::UnixTime{setup.start}, {"0.1.0", "test"},
                       kSimulatedPeakFlops);
  state.set_held({1 << 28, 1 << 28, 1 << 29, 1 << 28});
  job.steps(state, 20);
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
  while (::poll(&input, 1, static_cast<int>(1000 / rounds_per_second)) == 0) {
    job.nonfinite = job.round() % 50 == 49;
    job.step(state);
  }
}
