// A full disk, imitated by a limit on this process's file size: writes fail as on a full device.
#include "coordinator/io/file.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/runtime/saved_state.h"
#include "tests/runtime/driven_job.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

StepSignals signals_of(std::uint64_t round) {
  RankSignal report;
  report.incarnation = 1;
  report.round = RoundId(round);
  seal(report);
  return collect(RoundId(round), 1, 2, std::vector{report}, {}, {1});
}

TEST_SUITE("runtime.journal") {
  TEST_CASE("a full disk is told once, rounds are counted, and what was written replays") {
    test::TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), default_policies()};
    auto writer = JournalWriter::open(folder / "j", head);
    REQUIRE(writer.ok());
    int errors = 0;
    std::uint64_t bytes = 0;
    {
      const SmallFilesOnly disk(20000);
      for (std::uint64_t round = 1; round <= 1000; ++round) {
        const Status status = (*writer)->append(signals_of(round), {});
        CHECK((*writer)->bytes() >= bytes);  // a counter in telemetry
        bytes = (*writer)->bytes();
        if (!status.ok()) ++errors;
        if (!status.ok()) CHECK(status.code() == StatusCode::resource_exhausted);
      }
      CHECK((*writer)->close().ok());
    }
    CHECK(errors == 1);
    CHECK((*writer)->lost_rounds() > 500);
    CHECK(std::filesystem::file_size(folder / "j") <= 20000);
    CHECK(std::filesystem::file_size(folder / "j") == bytes);
    auto reader = JournalReader::open(folder / "j");
    REQUIRE(reader.ok());
    const auto report = replay(*reader, default_policies(), {});
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK(report->torn_bytes == 0);
    CHECK(report->rounds + (*writer)->lost_rounds() == 1000);
  }

  TEST_CASE("a full disk leaves the older saved state as it was") {
    test::TempFolder folder;
    const JobFacts job = test::driven_job(2);
    ControlState state = initial_state(job);
    REQUIRE(io::replace_file(folder / "s", *control_state_file(state)).ok());
    const std::string before = test::read_file(folder / "s");
    state.policies.push_back({"guard", PolicyState::from_bytes(std::string(80'000, 'x'))});
    {
      const SmallFilesOnly disk(5000);
      const Status replaced = io::replace_file(folder / "s", *control_state_file(state));
      CHECK(replaced.code() == StatusCode::resource_exhausted);
    }
    CHECK(test::read_file(folder / "s") == before);
    const std::filesystem::directory_iterator files((folder / "s").parent_path());
    CHECK(std::distance(begin(files), end(files)) == 1);
  }
}

}  // namespace
}  // namespace cox::runtime
