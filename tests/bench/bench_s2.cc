// Writes a made-up trace of a pipeline-parallel job with 128 workers to FILE, for s2.py:
//   bench_s2 FILE
#include <cstdio>
#include <string>

#include "coordinator/io/file.h"
#include "coordinator/testing/random.h"
#include "tests/metrics/analysis/made_trace.h"

int main(int argc, char** argv) {
  using namespace cox;
  if (argc != 2) {
    std::fprintf(stderr, "bench_s2: expected the name of a file, found %d arguments\n", argc - 1);
    return 2;
  }
  testing::Random random(2026);
  const test::MadeLayout layout{.dp_ranks = 16, .stages = 8, .microbatches = 16, .steps = 32};
  const auto seconds = [&random](const test::MadeOperation& operation) {
    return test::usual_seconds(operation) * (1 + 0.1 * random.uniform());
  };
  const Status written = io::replace_file(argv[1], test::csv_of(test::made_trace(layout, seconds)));
  if (!written.ok()) std::fprintf(stderr, "bench_s2: %s\n", written.message().c_str());
  return written.ok() ? 0 : 1;
}
