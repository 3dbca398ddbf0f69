// `cox plan`, run as people run it.
#include <string>

#include "coordinator/io/planning_files.h"
#include "tests/planner/random_problem.h"
#include "tests/runtime/driven_job.h"
#include "tests/tools/outcome.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::Outcome;

Outcome cox_plan(const std::string& arguments) {
  return test::run_cox("plan " + arguments);
}

constexpr const char* kInstances =
    R"({"instances": [{"id": "two", "base": 100, "bandwidth": 1, "boundary": [1, 1, 1],
"blocks": [
 {"interior": 50, "forward_us": 500, "backward_us": 900, "forward_ws": 2, "backward_ws": 3},
 {"interior": 50, "forward_us": 500, "backward_us": 900, "forward_ws": 2, "backward_ws": 3}],
"budgets": [{"budget": 300}, {"budget": 160}, {"budget": 120}]}]})";

planner::MemoryProfile profile() {
  testing::Random random(3);
  planner::RankProfile rank;
  rank.ranks = {0, 1};
  rank.problem = test::block_chain(random, 5, test::Copies::some);
  for (std::size_t i = 0; i < rank.problem.stages.size(); ++i)
    rank.stage_names.push_back("stage" + std::to_string(i));
  return {{rank}};
}

TEST_SUITE("tools.plan") {
  TEST_CASE("instances give one JSON line a budget") {
    test::TempFolder folder;
    test::write_file(folder / "i.json", kInstances);
    const Outcome outcome = cox_plan("--instances " + (folder / "i.json").string());
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.lines() == 3);
    CHECK(outcome.says(R"({"id":"two","budget":300,"feasible":true,"extra_us":0,"peak":)"));
    CHECK(outcome.says(R"("budget":160,"feasible":true,"extra_us":500)"));
    CHECK(outcome.says(R"("plan":"RK")"));
    CHECK(outcome.says(R"("budget":120,"feasible":false,"extra_us":null,"peak":null)"));
  }

  TEST_CASE("a profile gives a table, the stages' actions and a curve for each budget") {
    test::TempFolder folder;
    test::write_file(folder / "p.json", io::to_json(profile()));
    const std::string path = (folder / "p.json").string();
    const Outcome outcome = cox_plan(path + " --budget 1GiB --budget=100KiB --budget 1B");
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("ranks 0-1"));
    CHECK(outcome.says("1.000 GiB"));
    CHECK(outcome.says("nothing fits that budget"));
    CHECK(outcome.says("stage0"));
    CHECK_FALSE(outcome.says("stage1 "));  // a gap has no choice
    CHECK(outcome.says("time against budget"));
  }

  TEST_CASE("bad input is one clear line and exit code 2") {
    test::TempFolder folder;
    const std::string instances = (folder / "i.json").string();
    const std::string good = (folder / "p.json").string();
    const std::string bad = (folder / "bad.json").string();
    test::write_file(instances, kInstances);
    test::write_file(good, io::to_json(profile()));
    test::write_file(bad, "{\"instances\": [{]}");
    test::write_file(folder / "deep.json", std::string(1 << 20, '['));
    test::write_file(folder / "large.json", std::string((32 << 20) + 1, ' '));
    const std::string commands[] = {
        "",
        good,
        "--instances",
        "--budget 1GiB",
        good + " --budget 1parsec",
        good + " --budget",
        good + " --budgets 1GiB",
        good + " " + good + " --budget 1GiB",
        good + " --instances " + instances,
        instances + " --budget 1GiB",
        "--instances " + good,
        "--instances " + bad,
        "--instances " + (folder / "none").string(),
        "--instances " + (folder / "").string(),
        "--instances " + (folder / "deep.json").string(),
        "--instances " + (folder / "large.json").string(),
        (folder / "deep.json").string() + " --budget 1GiB",
    };
    for (const std::string& command : commands) {
      const Outcome outcome = cox_plan(command);
      CHECK_MESSAGE(outcome.exit_code == 2, command << ": " << outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, command << ": " << outcome.output);
      CHECK_MESSAGE(outcome.output.starts_with("cox: "), outcome.output);
    }
  }
}

}  // namespace
}  // namespace cox
