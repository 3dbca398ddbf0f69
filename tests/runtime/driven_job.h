// A job without ranks. Seeded signals with stragglers, spikes, non-finite steps, missing and faulty
// reports go through Decide round after round. Plans apply two rounds after their publication, and
// a journal records everything. The same seed gives the same job.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>

#include "coordinator/decide/decide.h"
#include "coordinator/runtime/journal.h"

namespace cox::test {

JobFacts driven_job(std::int32_t ranks);

class DrivenJob {
 public:
  DrivenJob(JobFacts job, Config config, PolicySet policies, ControlState state,
            std::uint64_t seed);

  runtime::JournalHead head() const { return {job_, config_, state_, policies_}; }
  const ControlState& state() const { return state_; }
  std::uint64_t plans() const { return plans_; }
  std::uint64_t reasons() const { return reasons_; }

  // Runs `rounds` rounds into the journal and leaves it open.
  void run(std::uint64_t rounds, runtime::JournalWriter& journal);

 private:
  StepSignals next_signals();
  RankSignal report_of(RankId rank);
  double noise(double scale);

  JobFacts job_;
  Config config_;
  PolicySet policies_;
  ControlState state_;
  std::mt19937_64 engine_;
  RoundId round_{};
  std::uint64_t applied_ = 0;
  std::uint64_t published_round_ = 0;
  std::uint64_t trouble_until_ = 0;
  bool overflows_ = false;  // else the loss jumps
  std::uint64_t plans_ = 0;
  std::uint64_t reasons_ = 0;
};

// Creates `path` with one segment of `rounds` rounds of the default policies.
void write_journal(const std::filesystem::path& path, std::int32_t ranks, std::uint64_t rounds,
                   std::uint64_t seed);

// A temporary folder. The destructor removes it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace cox::test
