// Writes the input of t4.py from seeded figures:
//
//   bench_t4 run FOLDER RANKS MEGABYTES         a run directory with about that many megabytes of
//                                               steps.jsonl in all, in the rows of our own writer
//   bench_t4 trace FILE EVENTS apart|nonsense   a trace of so many kernels: one after another, or
//                                               out of order and overlapping
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/testing/random.h"
#include "metrics/records/run_format.h"
#include "metrics/records/run_store.h"

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
  row.reduction_seconds = about(0.02);
  row.reduction_exposed_seconds = about(0.002);
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

Status write_run(const std::filesystem::path& run, int ranks, std::uint64_t bytes) {
  for (int rank = 0; rank < ranks; ++rank) {
    const Status written =
        write_rank(run / concat("rank", rank), rank, ranks, bytes / static_cast<unsigned>(ranks));
    if (!written.ok()) return written;
  }
  return ok_status();
}

enum class Kernels { apart, nonsense };

// Writes kernels of 3 us, or of up to 10 ms, on one device or on eight. Every third one
// communicates.
Status write_trace(const std::filesystem::path& path, std::uint64_t events, Kernels kernels) {
  auto file = metrics::AppendFile::open(path);
  if (!file.ok()) return file.status();
  const bool is_nonsense = kernels == Kernels::nonsense;
  testing::Random random(5);
  std::string text = "{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0}";
  for (std::uint64_t i = 0; i < events; ++i) {
    const double most = 4 * static_cast<double>(events);
    const double start = is_nonsense ? most * random.uniform() : 4 * static_cast<double>(i);
    const double length = is_nonsense ? 1e4 * random.uniform() : 3;
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{}\",\"pid\":0,\"tid\":7,\"ts\":{:.3f},"
        "\"dur\":{:.3f},\"args\":{{\"device\":{},\"stream\":7}}}}",
        i % 3 == 0 ? "ncclDevKernel_AllReduce_Sum_bf16" : "ampere_bf16_s16816gemm", start, length,
        is_nonsense ? static_cast<int>(i % 8) : 0);
    if (text.size() < (std::size_t{1} << 20) && i + 1 < events) continue;
    if (i + 1 == events) text += "]}";
    if (Status put = file->append(text); !put.ok()) return put;
    text.clear();
  }
  return ok_status();
}

Status write(const std::vector<std::string>& words) {
  const std::uint64_t number = words.size() == 4 ? std::strtoull(words[2].c_str(), nullptr, 10) : 0;
  if (number > 0 && words[0] == "trace")
    return write_trace(words[1], number,
                       words[3] == "nonsense" ? Kernels::nonsense : Kernels::apart);
  const std::uint64_t megabytes = number > 0 ? std::strtoull(words[3].c_str(), nullptr, 10) : 0;
  if (megabytes > 0 && words[0] == "run")
    return write_run(words[1], static_cast<int>(number), megabytes * 1'000'000);
  return invalid_argument(
      "expected run FOLDER RANKS MEGABYTES, or trace FILE EVENTS apart|nonsense");
}

}  // namespace

int main(int argc, char** argv) {
  const cox::Status written = write({argv + 1, argv + argc});
  if (written.ok()) return 0;
  std::fprintf(stderr, "bench_t4: %s\n", written.message().c_str());
  return 1;
}
