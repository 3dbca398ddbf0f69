// `cox plan`, run as users run it.
#include <string>

#include "metrics/records/planning_files.h"
#include "tests/metrics/command/outcome.h"
#include "tests/planner/random_problem.h"
#include "tests/runtime/driven_job.h"

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

planner::MemoryProfile profile(test::Levels levels = test::Levels::none) {
  testing::Random random(3);
  planner::RankProfile rank;
  rank.ranks = {0, 1};
  rank.problem = test::block_chain(random, 5, test::Copies::some, levels);
  for (std::size_t i = 0; i < rank.problem.stages.size(); ++i)
    rank.stage_names.push_back("stage" + std::to_string(i));
  return {{rank}};
}

TEST_SUITE("command.plan") {
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

  TEST_CASE("levels of recompute have a column where the profile has some") {
    test::TempFolder folder;
    test::write_file(folder / "p.json", io::to_json(profile()));
    const Outcome none = cox_plan((folder / "p.json").string() + " --budget 1GiB");
    CHECK_FALSE(none.says("levels"));
    test::write_file(folder / "p.json", io::to_json(profile(test::Levels::some)));
    const Outcome some = cox_plan((folder / "p.json").string() + " --budget 180KiB --budget 1GiB");
    CHECK_MESSAGE(some.exit_code == 0, some.output);
    CHECK(some.says("recomputed at levels (of 7)"));
    CHECK_MESSAGE(some.says("  1 at 2, 2 at 3, 1 at 6\n"), some.output);
    CHECK_MESSAGE(some.says("stage2  recompute 6   keep"), some.output);
  }

  TEST_CASE("a budget that nothing fits is exit code 1, as long as no other one fits") {
    test::TempFolder folder;
    const std::string run = (folder / "").string();
    test::write_file(folder / "memory_profile.json", io::to_json(profile()));
    const Outcome none = cox_plan(run + " --budget 1B");
    CHECK_MESSAGE(none.exit_code == 1, none.output);
    CHECK(none.says("nothing fits that budget"));
    CHECK(cox_plan(run + " --budget 1B --budget 1GiB").exit_code == 0);
    planner::MemoryProfile two = profile();
    two.profiles.push_back(two.profiles[0]);
    two.profiles[1].problem.base_bytes += std::int64_t{1} << 31;  // this kind of rank needs more
    test::write_file(folder / "memory_profile.json", io::to_json(two));
    CHECK(cox_plan(run + " --budget 1GiB").exit_code == 1);
    std::string only_small(kInstances);
    const std::string large = R"({"budget": 300}, {"budget": 160}, )";
    only_small.replace(only_small.find(large), large.size(), "");
    test::write_file(folder / "i.json", only_small);
    const Outcome instances = cox_plan("--instances " + (folder / "i.json").string());
    CHECK_MESSAGE(instances.exit_code == 1, instances.output);
    CHECK(instances.lines() == 1);
  }

  TEST_CASE("plan takes a run directory, and says what it misses in one") {
    test::TempFolder folder;
    const std::string run = (folder / "").string();
    const Outcome without = cox_plan(run + " --budget 1GiB");
    CHECK(without.exit_code == 2);
    CHECK(without.says("expected a run directory with memory_profile.json, found none in it"));
    test::write_file(folder / "memory_profile.json", io::to_json(profile()));
    const Outcome outcome = cox_plan(run + " --budget 1GiB");
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("ranks 0-1"));
  }

  TEST_CASE("names of stages cannot write to the reader's terminal") {
    test::TempFolder folder;
    planner::MemoryProfile named = profile();
    named.profiles[0].stage_names[0] = "a\x1b[2J\nb";
    test::write_file(folder / "p.json", io::to_json(named));
    const Outcome outcome = cox_plan((folder / "p.json").string() + " --budget 1GiB");
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("a?[2J?b"));
    CHECK_FALSE(outcome.says("\x1b"));
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
