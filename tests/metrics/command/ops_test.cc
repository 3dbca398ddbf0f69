// `cox ops`, run as users run it.
#include <filesystem>
#include <string>

#include "metrics/records/operator_table_file.h"
#include "tests/metrics/command/outcome.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::Outcome;

Outcome cox_ops(const std::string& arguments) {
  return test::run_cox("ops " + arguments);
}

// Returns the sums of two steps.
OperatorTable table() {
  OperatorTable table;
  table.steps = 2;
  table.newest = StepId(66);
  table.blocks = {{"embed", 0.001, 0.002}, {"h.0", 0.003, 0.005}, {"h.1", 0.004, 0.006}};
  table.rows = {{"aten::embedding", "embed", 2, 2'000'000, 8 << 20},
                {"aten::gelu", "h.0", 2, 1'000'000, 4 << 20},
                {"aten::mm", "h.0", 8, 6'000'000, 2 << 20, OperatorFlops{16e9, 32e9}},
                {"aten::mm", "h.1", 8, 7'000'000, 2 << 20, OperatorFlops{16e9, 16e9}}};
  return table;
}

struct Run {
  Run() {
    std::filesystem::create_directory(folder / "rank0");
    std::filesystem::create_directory(folder / "rank1");
    test::write_file(folder / "rank0" / "operators.json", io::to_json(table()));
    OperatorTable other = table();
    other.rows.resize(1);
    test::write_file(folder / "rank1" / "operators.json", io::to_json(other));
  }
  std::string path() const { return (folder / "").string(); }
  test::TempFolder folder;
};

TEST_SUITE("command.ops") {
  TEST_CASE("a run gives its blocks and its operators, figures of a mean step") {
    const Run run;
    const Outcome outcome = cox_ops(run.path());
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(
        outcome.says("mean of 2 sampled steps up to step 66: 16.0 GFLOP forward, 24.0 GFLOP back"));
    CHECK(outcome.says("8.00 ms in operators, of which 1.50 ms in those whose FLOPs are not"));
    CHECK_MESSAGE(outcome.says("h.0      3.00 ms    5.00 ms   3.00 MiB   8.00 GFLOP    16.0 GFLOP"
                               "  3.00 TFLOP/s\n"),
                  outcome.output);
    CHECK_MESSAGE(outcome.says("aten::mm            8.00    6.50 ms  81.2 %   2.00 MiB   "
                               "16.0 GFLOP  2.46 TFLOP/s\n"),
                  outcome.output);
    CHECK_MESSAGE(outcome.says("aten::gelu          1.00     500 µs   6.2 %   2.00 MiB            "
                               "-             -\n"),
                  outcome.output);
  }

  TEST_CASE("operators are sorted by time, bytes or FLOPs") {
    const Run run;
    const auto first_of = [&run](const std::string& options) {
      const Outcome outcome = cox_ops(run.path() + options);
      CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
      return outcome.output.substr(outcome.output.find("aten::"), 10);
    };
    CHECK(first_of("") == "aten::mm  ");
    CHECK(first_of(" --by time") == "aten::mm  ");
    CHECK(first_of(" --by=bytes") == "aten::embe");
    CHECK(first_of(" --by flops") == "aten::mm  ");
  }

  TEST_CASE("a pattern chooses blocks, and one that fits none names the nearest") {
    const Run run;
    const Outcome one = cox_ops(run.path() + " --block 'h.*'");
    CHECK_MESSAGE(one.exit_code == 0, one.output);
    CHECK(one.says("h.1"));
    CHECK(one.says("aten::mm"));
    CHECK_FALSE(one.says("embed"));
    const Outcome none = cox_ops(run.path() + " --block 'x.*'");
    CHECK(none.exit_code == 2);
    CHECK(none.lines() == 1);
    CHECK_MESSAGE(none.says("found 'x.*'; its blocks are h.0, h.1"), none.output);
  }

  TEST_CASE("JSON is the file again, of the blocks that were asked for") {
    const Run run;
    const auto whole = io::read_operator_table(cox_ops(run.path() + " --json").output);
    REQUIRE_MESSAGE(whole.ok(), whole.status().message());
    CHECK(*whole == table());
    const auto part = io::read_operator_table(cox_ops(run.path() + " --json --block h.1").output);
    REQUIRE(part.ok());
    REQUIRE(part->rows.size() == 1);
    CHECK(part->rows[0] == table().rows[3]);
  }

  TEST_CASE("a rank, its folder and its file are taken") {
    const Run run;
    for (const std::string& path :
         {run.path() + " --rank 1", run.path() + "rank1", run.path() + "rank1/operators.json"}) {
      const Outcome outcome = cox_ops(path);
      CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
      CHECK_MESSAGE(outcome.says("aten::embedding"), path);
      CHECK_FALSE(outcome.says("aten::mm"));
    }
  }

  TEST_CASE("what is no run with operators is one clear line and exit code 2") {
    const Run run;
    test::TempFolder empty;
    test::write_file(empty / "text", "no table");
    std::filesystem::create_directory(empty / "rank0");
    std::filesystem::create_symlink(run.folder / "rank0" / "operators.json",
                                    empty / "rank0" / "operators.json");
    const struct {
      std::string arguments;
      std::string words;
    } cases[] = {
        {run.path() + " --rank 2", "with rank2/operators.json, found none in it"},
        {(empty / "text").string(), "JSON"},
        {(empty / "none").string(), "cannot open"},
        {(empty / "").string(), "found a link"},
        {run.path() + " --by size", "--by"},
        {run.path() + " --rank -1", "--rank"},
        {"", "RUN"},
    };
    for (const auto& it : cases) {
      const Outcome outcome = cox_ops(it.arguments);
      CHECK_MESSAGE(outcome.exit_code == 2, it.arguments << ": " << outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, outcome.output);
      CHECK_MESSAGE(outcome.says(it.words), outcome.output);
    }
  }

  TEST_CASE("names of operators and blocks cannot write to the reader's terminal") {
    const Run run;
    OperatorTable hostile = table();
    hostile.rows.insert(hostile.rows.begin(), {"a\x1b[2Jb\nc", "d\x1b", 1, 1, 1});
    hostile.blocks.push_back({"d\x1b", 1, 1});
    test::write_file(run.folder / "rank0" / "operators.json", io::to_json(hostile));
    const Outcome outcome = cox_ops(run.path());
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("a?[2Jb?c"));
    CHECK(outcome.says("d?"));
    CHECK_FALSE(outcome.says("\x1b"));
  }
}

}  // namespace
}  // namespace cox
