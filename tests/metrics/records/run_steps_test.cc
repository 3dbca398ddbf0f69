// The steps of run directories, ours and those of other tools.
#include "metrics/records/run_steps.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

const std::string kLine = R"({"step":4,"timestamp":9,"phases":{"forward":0.5,"comm":0.25}})"
                          "\n";

struct Run {
  explicit Run(int ranks) {
    for (int r = 0; r < ranks; ++r) write(r, kLine);
  }
  void write(int rank, const std::string& lines) const {
    const fs::path at = fs::path(folder / "") / ("rank" + std::to_string(rank));
    fs::create_directory(at);
    test::write_file(at / "steps.jsonl", lines);
  }
  Result<diagnosis::RunPhases> read() const { return io::read_run_phases(folder / ""); }
  test::TempFolder folder;
};

TEST_SUITE("records.run_steps") {
  TEST_CASE("a line has the seconds of its phases") {
    const io::PhaseLines lines = io::parse_phase_lines(kLine);
    REQUIRE(lines.steps.size() == 1);
    CHECK(lines.steps[0].step == 4);
    CHECK(lines.steps[0].seconds == std::array<double, 7>{0, 0.5, 0, 0, 0, 0, 0.25});
  }

  TEST_CASE("bare words that are no JSON do not hide a step") {
    const io::PhaseLines lines = io::parse_phase_lines(
        R"({"step":1,"phases":{"data":1},"scalars":{"loss":NaN,"a":-Infinity,"NaN \"Infinity":Infinity}})"
        "\n");
    CHECK(lines.steps.size() == 1);
    CHECK(lines.damaged == 0);
  }

  TEST_CASE("what is no step is counted and skipped, but for a torn end") {
    const io::PhaseLines lines = io::parse_phase_lines(
        kLine + "nonsense\n" + R"({"phases":{"data":1}})" + "\n" +
        R"({"step":-1,"phases":{"data":1}})" + "\n" + R"({"step":5,"phases":{"data":NaN}})" + "\n" +
        R"({"step":6})" + "\n" + R"({"step":7,"timestamp":8,"phases":{"data":1,"lunch":1}})" +
        "\n" + R"({"step":8,"pha)");
    CHECK(lines.steps.size() == 2);
    CHECK(lines.damaged == 4);
    CHECK(lines.without_phases == 1);
    CHECK(lines.unknown_phases == 1);
    CHECK(lines.clock_ran_back == 1);
  }

  TEST_CASE("of a long file the newest steps are kept, in their order") {
    std::string text;
    for (int step = 0; step < 25; ++step)
      text += "{\"step\":" + std::to_string(step) + ",\"phases\":{\"data\":1}}\n";
    for (const std::size_t most : {1U, 7U, 24U, 25U, 26U}) {
      CAPTURE(most);
      const io::PhaseLines lines = io::parse_phase_lines(text, most);
      const std::size_t kept = std::min<std::size_t>(most, 25);
      REQUIRE(lines.steps.size() == kept);
      CHECK(lines.older == 25 - kept);
      for (std::size_t i = 0; i < kept; ++i)
        CHECK(lines.steps[i].step == static_cast<std::int64_t>(25 - kept + i));
    }
  }

  TEST_CASE("a run is read rank by rank, and a rank's folder by itself") {
    const Run run(3);
    run.write(1, "damaged\n" + kLine);
    const auto phases = run.read();
    REQUIRE_MESSAGE(phases.ok(), phases.status().message());
    CHECK(phases->of_ranks.size() == 3);
    CHECK(phases->gaps == std::vector<std::string>{"rank 1: 1 damaged lines are left out"});
    const auto one = io::read_run_phases(run.folder / "rank2");
    REQUIRE(one.ok());
    CHECK(one->of_ranks.size() == 1);
  }

  TEST_CASE("a missing rank is an error: waiting for it would pass for communication") {
    const Run run(3);
    fs::remove_all(run.folder / "rank1");
    CHECK(run.read().status().message().find("found none of rank 1") != std::string::npos);
    const Run tail(3);
    test::write_file(tail.folder / "rank0" / "run.json", R"({"world_size": 4, "x": NaN})");
    CHECK(tail.read().status().message().find("of 4 ranks, found none of rank 3") !=
          std::string::npos);
    test::write_file(tail.folder / "rank0" / "run.json", R"({"world_size": 4, "x)");
    CHECK(tail.read().ok());  // torn: nobody knows better
    fs::remove(tail.folder / "rank2" / "steps.jsonl");
    CHECK(tail.read().status().code() == StatusCode::not_found);
    const test::TempFolder empty;
    CHECK(io::read_run_phases(empty / "").status().code() == StatusCode::not_found);
  }

  TEST_CASE("links in a run directory are refused") {
    const Run run(2);
    fs::remove(run.folder / "rank1" / "steps.jsonl");
    fs::create_symlink(run.folder / "rank0" / "steps.jsonl", run.folder / "rank1" / "steps.jsonl");
    CHECK(run.read().status().code() == StatusCode::failed_precondition);
  }
}

}  // namespace
}  // namespace cox
