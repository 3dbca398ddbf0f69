// The cost of the host timeline: the recorder of a node's lowest rank, and that of another rank,
// each for some seconds beside an idle process. Prints the CPU time of a recorder's thread, as a
// share of a core and for each sample, the sampling rate, and the bytes of a line.
//
//   bench_host [SECONDS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "sdk/src/session/host_watch.h"

namespace {

using namespace cox;
using namespace cox::detail;
namespace fs = std::filesystem;

int measure(const char* what, HostRecorder::Setup setup, double seconds) {
  const fs::path file = fs::temp_directory_path() / "cox-bench-host.jsonl";
  fs::remove(file);
  setup.file = file;
  setup.mark = [] { return RankMark{}; };
  auto recorder = HostRecorder::start(std::move(setup));
  if (!recorder.ok()) {
    std::fprintf(stderr, "%s\n", std::string(recorder.status().message()).c_str());
    return 1;
  }
  // The first sample opens files, which a run pays for once.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double cpu = (*recorder)->cpu_seconds();
  const auto looks = static_cast<double>((*recorder)->looks());
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double spent = (*recorder)->cpu_seconds() - cpu;
  const double looked = static_cast<double>((*recorder)->looks()) - looks;
  recorder->reset();
  std::printf("%s: %.4f %% of a core, %.1f us a look, %.2f looks a second, %.0f bytes a line\n",
              what, 100 * spent / seconds, 1e6 * spent / looked, looked / seconds,
              static_cast<double>(fs::file_size(file)) / (looks + looked));
  fs::remove(file);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 30;
  return measure("lowest rank of a node", {.has_node = true}, seconds) +
         measure("another rank", {}, seconds);
}
