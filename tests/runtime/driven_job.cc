#include "tests/runtime/driven_job.h"

#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "coordinator/policies/registry.h"

#include <doctest/doctest.h>

namespace cox::test {

JobFacts driven_job(std::int32_t ranks) {
  JobFacts job;
  job.name = "driven";
  job.incarnation = 1;
  job.world_size = ranks;
  job.blocks = {"embed", "layer.0", "layer.1", "head"};
  job.global_batch = 64;
  job.capabilities.rollback = true;
  return job;
}

DrivenJob::DrivenJob(JobFacts job, Config config, PolicySet policies, ControlState state,
                     std::uint64_t seed)
    : job_(std::move(job)),
      config_(std::move(config)),
      policies_(std::move(policies)),
      state_(std::move(state)),
      engine_(seed) {}

// std::normal_distribution would give other numbers with other libraries.
double DrivenJob::noise(double scale) {
  return scale * (static_cast<double>(engine_() >> 11) * 0x1p-53 - 0.5);
}

RankSignal DrivenJob::report_of(RankId rank) {
  RankSignal signal;
  signal.rank = rank;
  signal.incarnation = job_.incarnation;
  signal.round = round_;
  signal.step = StepId(round_.value());
  signal.plan_held = state_.plan.id.number;
  signal.plan_applied = applied_;
  const bool troubled = round_.value() < trouble_until_;
  signal.loss = 3.0 + noise(0.1) + (troubled && !overflows_ ? 9.0 : 0.0);
  if (troubled && overflows_) {
    signal.loss = std::numeric_limits<double>::quiet_NaN();
    signal.set(SignalFlag::nonfinite_loss);
    signal.set(SignalFlag::step_skipped);
  }
  signal.weight = 32;
  signal.gradient_norm = 1 + noise(0.2);
  const bool slow = rank.value() == 1 && round_.value() / 400 % 2 == 1;
  signal.phase_seconds[static_cast<std::size_t>(Phase::forward)] =
      static_cast<float>(0.05 * (slow ? 1.4 : 1.0) + noise(0.001));
  signal.phase_seconds[static_cast<std::size_t>(Phase::backward)] =
      static_cast<float>(0.1 + noise(0.002));
  signal.wall_seconds = 0.2;
  signal.rounds = 1;
  signal.samples = 32;
  signal.tokens = 4096;
  signal.memory_peak_bytes = static_cast<std::uint64_t>(9e8 + noise(1e8) + (slow ? 1e8 : 0));
  seal(signal);
  return signal;
}

StepSignals DrivenJob::next_signals() {
  round_ = round_.next();
  if (engine_() % 150 == 0) {
    trouble_until_ = round_.value() + 12;
    overflows_ = engine_() % 2 == 0;
  }
  if (state_.plan.id.number > applied_ && round_.value() >= published_round_ + 2)
    applied_ = state_.plan.id.number;
  std::vector<RankSignal> received;
  for (std::int32_t r = 0; r < job_.world_size; ++r) {
    RankSignal report = report_of(RankId(r));
    const auto luck = engine_() % 100;
    if (luck == 0) continue;                    // missing
    if (luck == 1) report.loss += 1;            // damaged: the checksum no longer fits
    if (luck == 2) received.push_back(report);  // duplicate
    received.push_back(report);
  }
  return collect(round_, job_.incarnation, job_.world_size, received, {},
                 {1.7e9 + static_cast<double>(round_.value()) * 0.2});
}

void DrivenJob::run(std::uint64_t rounds, runtime::JournalWriter& journal) {
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const StepSignals signals = next_signals();
    Decided decided = decide(job_, config_, policies_, state_, signals);
    state_ = std::move(decided.state);
    if (decided.decision.plan) {
      ++plans_;
      published_round_ = round_.value();
    }
    reasons_ += decided.decision.reasons.size();
    const Status appended = journal.append(signals, decided.decision);
    REQUIRE_MESSAGE(appended.ok(), appended.text());
  }
}

void write_journal(const std::filesystem::path& path, std::int32_t ranks, std::uint64_t rounds,
                   std::uint64_t seed) {
  const JobFacts facts = driven_job(ranks);
  DrivenJob job(facts, {}, default_policies(), initial_state(facts), seed);
  auto journal = runtime::JournalWriter::open(path, job.head());
  REQUIRE_MESSAGE(journal.ok(), journal.status().text());
  job.run(rounds, **journal);
  const Status closed = (*journal)->close();
  REQUIRE_MESSAGE(closed.ok(), closed.text());
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "cox-test-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE(stream);
  std::string bytes(std::filesystem::file_size(path), '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(stream);
  return bytes;
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(stream.flush());
}

}  // namespace cox::test
