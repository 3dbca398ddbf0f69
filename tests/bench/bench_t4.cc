// Writes a run directory of RANKS ranks and about MEGABYTES of steps.jsonl in all, for t4.py:
//   bench_t4 FOLDER RANKS MEGABYTES
// Rows are those of our own writer, from seeded figures.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "coordinator/core/text.h"
#include "coordinator/testing/random.h"
#include "metrics/run_format.h"
#include "metrics/run_store.h"

namespace {

using namespace cox;

metrics::StepRow row_of(std::uint64_t step, testing::Random& random) {
  const auto about = [&random](double seconds) {
    return static_cast<float>(seconds * (1 + 0.05 * random.uniform()));
  };
  metrics::StepRow row;
  row.step = StepId(step);
  row.round = RoundId(step);
  row.timestamp = 1.79e9 + 0.06 * static_cast<double>(step) + 1e-3 * random.uniform();
  const auto put = [&row](Phase phase, float seconds) {
    row.phase_seconds[static_cast<std::size_t>(phase)] = seconds;
  };
  put(Phase::data, about(7e-5));
  put(Phase::forward, about(0.015));
  put(Phase::backward, about(0.03));
  put(Phase::communication, about(0.002));
  put(Phase::optimizer, about(5e-4));
  put(Phase::other, about(1e-4));
  row.waiting_seconds = about(0.001);
  row.recompute_seconds = about(0.003);
  row.loss = 3 / (1 + 1e-6 * static_cast<double>(step)) + 0.1 * random.uniform();
  row.gradient_norm = 1 + random.uniform();
  row.learning_rate = 3e-4;
  row.memory_alloc_bytes = 61'248'000 + static_cast<std::uint64_t>(1e6 * random.uniform());
  row.memory_reserved_bytes = row.memory_alloc_bytes;
  row.memory_peak_alloc_bytes = row.memory_alloc_bytes + 123'000'000;
  row.memory_peak_reserved_bytes = row.memory_peak_alloc_bytes;
  row.predicted_peak_bytes = 190'000'000;
  row.headroom_bytes = 18'851'352'028 + static_cast<std::int64_t>(1e6 * random.uniform());
  row.plan = step / 100'000;
  row.precision_blocks[0] = 9;
  row.recomputed_blocks = 9;
  return row;
}

Status write_rank(const std::filesystem::path& folder, std::int32_t rank, std::int32_t ranks,
                  std::uint64_t bytes) {
  if (Status made = metrics::make_run_folder(folder); !made.ok()) return made;
  auto file = metrics::AppendFile::open(folder / "steps.jsonl");
  if (!file.ok()) return file.status();
  metrics::RunInfo info;
  info.name = "made";
  info.rank = RankId(rank);
  info.world_size = ranks;
  testing::Random random(static_cast<std::uint64_t>(rank) + 4);
  std::string text;
  std::uint64_t written = 0;
  std::uint64_t step = 0;
  while (written < bytes) {
    text.clear();
    while (text.size() < (std::size_t{1} << 20)) text += metrics::step_line(row_of(step++, random));
    if (Status put = file->append(text); !put.ok()) return put;
    written += text.size();
  }
  auto json = metrics::AppendFile::open(folder / "run.json");
  return json.ok() ? json->append(metrics::run_json(info, {0, step, 0})) : json.status();
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 4 ? std::atoi(argv[2]) : 0;
  const long megabytes = argc == 4 ? std::atol(argv[3]) : 0;
  if (ranks < 1 || megabytes < 1) {
    std::fprintf(stderr, "bench_t4: expected FOLDER RANKS MEGABYTES\n");
    return 2;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto folder = std::filesystem::path(argv[1]) / concat("rank", rank);
    const Status written = write_rank(
        folder, rank, ranks,
        static_cast<std::uint64_t>(megabytes) * 1'000'000 / static_cast<std::uint64_t>(ranks));
    if (written.ok()) continue;
    std::fprintf(stderr, "bench_t4: %s\n", written.message().c_str());
    return 1;
  }
  return 0;
}
