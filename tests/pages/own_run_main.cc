// Writes a run directory like that of a real job of three ranks. Steps have recompute, saves,
// waiting and Coxswain's own work; the host timeline has every cause of idle time; the journal has
// plans with their reasons.
//   cox_own_run DIRECTORY
// Simulates the job without MPI and LibTorch, and writes the same bytes each time.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/host_sample.h"
#include "coordinator/decide/decide.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal.h"
#include "metrics/live_window.h"
#include "metrics/records/host_lines.h"
#include "metrics/records/run_format.h"
#include "tests/metrics/simulated_job.h"

namespace {

namespace fs = std::filesystem;
using namespace cox;

constexpr std::int32_t kRanks = 3;
constexpr int kSteps = 240;
constexpr double kStart = 1.7e9;
constexpr double kStepSeconds = 0.2;
constexpr double kSamplePeriod = 0.1;
constexpr int kSamples = 480;  // over the seconds of the steps
constexpr std::uint64_t kRoundsPerSave = 60;
constexpr float kSaveSeconds = 0.3F;

// Rank 0 saves; the others wait for the save in their communication.
void add_save(metrics::StepRow& row, std::int32_t rank) {
  if (row.round.value() % kRoundsPerSave != 0) return;
  if (rank == 0)
    row.save_seconds = kSaveSeconds;
  else
    row.phase_seconds[static_cast<std::size_t>(Phase::communication)] += kSaveSeconds;
}

// Writes the files of ranks and coordinator.
class Record final : public StepSink {
 public:
  explicit Record(runtime::JournalWriter& journal) : journal_(journal) {}

  void record(const StepRecord& record) override {
    is_whole = is_whole && journal_.append(record.signals, record.decision).ok();
    for (const RankSignal& report : record.signals.reports) {
      metrics::StepRow row = metrics::row_of(report, &record.plan, record.signals.now);
      row.memory_reserved_bytes = row.memory_alloc_bytes;  // as on the CPU
      row.memory_peak_reserved_bytes = row.memory_peak_alloc_bytes;
      add_save(row, report.rank.value());
      steps.at(static_cast<std::size_t>(report.rank.value())) += metrics::step_line(row);
    }
  }

  std::vector<std::string> steps = std::vector<std::string>(kRanks);
  bool is_whole = true;

 private:
  runtime::JournalWriter& journal_;
};

// Each hundredth sample begins with a save and an evaluation.
Activity activity_at(std::int32_t rank, int sample) {
  const int place = sample % 100;
  if (place < 6) return rank == 0 ? Activity::saving : Activity::waiting;
  if (place < 12) return Activity::evaluating;
  if (place < 14) return Activity::epoch;
  if (place < 16) return Activity::outside;
  if (place % 10 == 7) return Activity::data;
  if (place % 10 == 8) return rank == 2 ? Activity::backward : Activity::waiting;
  if (place % 10 == 9) return Activity::waiting;
  return place % 2 == 0 ? Activity::forward : Activity::backward;
}

std::string host_lines(std::int32_t rank) {
  std::string lines;
  double used = 1;
  for (int i = 0; i < kSamples; ++i) {
    HostSample sample;
    sample.timestamp = kStart + kSamplePeriod * i;
    sample.step = i / 2;
    sample.activity = activity_at(rank, i);
    sample.activity_seconds = kSamplePeriod;
    const bool computes =
        sample.activity == Activity::forward || sample.activity == Activity::backward;
    used += computes ? kSamplePeriod : 0;
    sample.user_seconds = used;
    sample.resident_bytes = 5e8;
    if (rank == 0) sample.node = NodeCounters{};
    if (i == 0) sample.start = HostStart{kStart - 3, kSamplePeriod, 0, 2, -1};
    lines += io::host_line(sample);
  }
  return lines;
}

std::string about(std::int32_t rank) {
  metrics::RunInfo info;
  info.name = "own";
  info.rank = RankId(rank);
  info.world_size = kRanks;
  info.started = kStart;
  info.config = {{"seed", std::int64_t{1}}, {"memory.budget", std::string("6.5GiB")}};
  info.environment = {{"machine", std::string("x86_64")}, {"cpu_count", std::int64_t{2}}};
  info.variables = {{"OMP_NUM_THREADS", std::string("1")}};
  return metrics::run_json(info, {kSteps * kStepSeconds, kSteps, 0});
}

bool write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return static_cast<bool>(file.flush());
}

bool write_run(const fs::path& run) {
  metrics::SimulatedSetup setup;
  setup.ranks = kRanks;
  setup.start = kStart;
  setup.step_seconds = kStepSeconds;
  setup.numerics = true;
  metrics::SimulatedJob job(setup);
  fs::create_directories(run);
  auto journal = runtime::JournalWriter::open(
      run / "journal.cox", {job.job(), Config{}, initial_state(job.job()), default_policies()});
  if (!journal.ok()) return false;
  Record record(**journal);
  job.steps(record, kSteps);
  bool is_written = record.is_whole && (*journal)->close().ok();
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const fs::path folder = run / ("rank" + std::to_string(rank));
    fs::create_directories(folder);
    is_written = write(folder / "steps.jsonl", record.steps[static_cast<std::size_t>(rank)]) &&
                 write(folder / io::kHostFileName, host_lines(rank)) &&
                 write(folder / "run.json", about(rank)) && is_written;
  }
  return is_written;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && write_run(argv[1])) return 0;
  std::fprintf(stderr, "expected a directory that can be written: cox_own_run DIRECTORY\n");
  return 1;
}
