// Bad run directories against every command that reads one: one line with the error and exit code
// 2, or an answer if some data can be read.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/metrics/command/outcome.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::TempFolder;

constexpr std::size_t kMostLineBytes = 500;
constexpr int kRanks = 2;

std::string line(int step, const std::string& seconds) {
  return "{\"step\":" + std::to_string(step) + ",\"timestamp\":" + seconds +
         ",\"phases\":{\"forward\":" + seconds + ",\"comm\":" + seconds +
         "},\"scalars\":{\"loss\":" + seconds + ",\"grad_norm\":" + seconds +
         "},\"memory\":{\"alloc\":" + seconds + "}}\n";
}

void write_run(const fs::path& run, const std::vector<std::string>& seconds) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const fs::path folder = run / ("rank" + std::to_string(rank));
    fs::create_directories(folder);
    std::string lines;
    for (int step = 0; step < 60; ++step)
      lines += line(step, seconds[static_cast<std::size_t>(step) % seconds.size()]);
    test::write_file(folder / "steps.jsonl", lines);
    test::write_file(folder / "run.json", R"({"name":"n","world_size":2})");
  }
}

void write_steps(const fs::path& run, const std::string& bytes) {
  for (int rank = 0; rank < kRanks; ++rank)
    test::write_file(run / ("rank" + std::to_string(rank)) / "steps.jsonl", bytes);
}

// Returns every command that reads a run directory. `other` is a good one, `out` a file to write.
std::vector<std::string> commands(const fs::path& run, const fs::path& other, const fs::path& out) {
  const std::string at = " '" + run.string() + "'";
  const std::string to = " --out '" + out.string() + "'";
  return {"analyze" + at,
          "analyze" + at + " --json",
          "analyze" + at + " --rules pytscope",
          "report" + at + to,
          "diff" + at + " '" + other.string() + "'",
          "diff '" + other.string() + "'" + at,
          "trace" + at + to,
          "whatif" + at};
}

struct BadRun {
  std::string what;
  std::function<void(const fs::path& run)> spoil;  // damages a good run
};

std::vector<BadRun> bad_runs() {
  const auto steps_of_rank1 = [](const fs::path& run) { return run / "rank1" / "steps.jsonl"; };
  return {
      {"not there", [](const fs::path& run) { fs::remove_all(run); }},
      {"a file",
       [](const fs::path& run) {
         fs::remove_all(run);
         test::write_file(run, "x");
       }},
      {"empty",
       [](const fs::path& run) {
         fs::remove_all(run);
         fs::create_directories(run);
       }},
      {"ranks without files",
       [](const fs::path& run) {
         for (int rank = 0; rank < kRanks; ++rank)
           fs::remove(run / ("rank" + std::to_string(rank)) / "steps.jsonl");
       }},
      {"files without bytes", [](const fs::path& run) { write_steps(run, ""); }},
      {"no text",
       [](const fs::path& run) { write_steps(run, "\xff\xfe\x01\n\xc3\x28\n\x1b[31m"); }},
      {"one line that does not end",
       [](const fs::path& run) {
         write_steps(run, "");
         for (int rank = 0; rank < kRanks; ++rank)  // zeros, which take no disk space
           fs::resize_file(run / ("rank" + std::to_string(rank)) / "steps.jsonl", 8 << 20);
       }},
      {"JSON of another kind",
       [](const fs::path& run) { write_steps(run, "{\"a\":1}\n[1]\n7\n"); }},
      {"ranks of two runs",
       [](const fs::path& run) {
         test::write_file(run / "rank1" / "run.json",
                          R"({"name":"another\u001b[31m","world_size":2})");
       }},
      {"a link to a rank",
       [](const fs::path& run) {
         fs::remove_all(run / "rank1");
         fs::create_directory_symlink(run / "rank0", run / "rank1");
       }},
      {"a link to steps",
       [=](const fs::path& run) {
         fs::remove(steps_of_rank1(run));
         fs::create_symlink(run / "rank0" / "steps.jsonl", steps_of_rank1(run));
       }},
      {"a pipe",
       [=](const fs::path& run) {
         fs::remove(steps_of_rank1(run));
         REQUIRE(::mkfifo(steps_of_rank1(run).c_str(), 0600) == 0);
       }},
      {"a folder in the place of steps",
       [=](const fs::path& run) {
         fs::remove(steps_of_rank1(run));
         fs::create_directories(steps_of_rank1(run));
       }},
  };
}

bool is_clean(const std::string& text) {
  return std::ranges::all_of(
      text, [](char c) { return c == '\n' || static_cast<unsigned char>(c) >= 32; });
}

TEST_SUITE("command.bad_runs") {
  TEST_CASE("what is no run directory gets one line and exit code 2 from every command") {
    const TempFolder folder;
    const fs::path run = folder / "run";
    const fs::path good = folder / "good";
    const fs::path out = folder / "out";
    write_run(good, {"0.125", "0.25"});
    for (const BadRun& bad : bad_runs()) {
      CAPTURE(bad.what);
      fs::remove_all(run);
      write_run(run, {"0.125", "0.25"});
      bad.spoil(run);
      for (const std::string& command : commands(run, good, out)) {
        const Outcome outcome = test::run_cox(command);
        INFO(command << ": " << outcome.output);
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.lines() == 1);
        CHECK(outcome.output.size() < kMostLineBytes);
        CHECK(is_clean(outcome.output));
        CHECK_FALSE(fs::exists(out));
      }
    }
  }

  TEST_CASE("numbers that are none are read, and no command fails over them") {
    const TempFolder folder;
    const fs::path run = folder / "run";
    const fs::path good = folder / "good";
    write_run(good, {"0.125", "0.25"});
    const std::vector<std::vector<std::string>> kinds = {
        {"NaN"},   {"NaN", "0.5"},          {"Infinity"},  {"-Infinity", "0.5", "NaN"},
        {"1e308"}, {"-1", "1e-320", "0.5"}, {"null", "0"}, {"0"}};
    for (const std::vector<std::string>& seconds : kinds) {
      CAPTURE(seconds.front());
      write_run(run, seconds);
      for (const std::string& command : commands(run, good, folder / "out")) {
        const Outcome outcome = test::run_cox(command);
        INFO(command << ": " << outcome.output);
        const bool is_answer = outcome.exit_code == 0 || outcome.exit_code == 1;
        CHECK((is_answer || (outcome.exit_code == 2 && outcome.lines() == 1)));
      }
      CHECK(test::run_cox("analyze '" + run.string() + "'").exit_code == 0);
    }
  }
}

}  // namespace
}  // namespace cox
