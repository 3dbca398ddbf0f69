// The planner's files, well-formed and hostile.
#include "metrics/records/planning_files.h"

#include <string>

#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"
#include "tests/planner/random_problem.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using planner::MemoryProfile;
using test::Caps;
using test::Copies;
using test::Levels;

MemoryProfile sample(std::uint64_t seed) {
  testing::Random random(seed);
  MemoryProfile profile;
  for (int p = 0; p < 3; ++p) {
    planner::RankProfile rank;
    rank.ranks = {p, p + 10};
    rank.limit_bytes = p * 1000;
    rank.problem = p == 0 ? test::block_chain(random, 6, Copies::some)
                          : test::wild_problem(random, 5, Copies::some, Caps::maybe,
                                               p == 1 ? Levels::none : Levels::some);
    for (std::size_t i = 0; i < rank.problem.stages.size(); ++i)
      rank.stage_names.push_back("block \"" + std::to_string(i) + "\"\n");
    for (Stage& stage : rank.problem.stages) {  // the file leaves out forbidden actions
      for (StageOption& o : stage.options) {
        if (!o.allowed) o = {};
      }
    }
    profile.profiles.push_back(rank);
  }
  return profile;
}

std::string instance(const std::string& block) {
  return R"({"instances": [{"id": "a", "base": 5, "bandwidth": 3, "boundary": [1, 2], "blocks": [)" +
         block + R"(], "budgets": [{"budget": 9}, 12]}]})";
}

const std::string kBlock =
    R"({"interior": 4, "forward_us": 5, "backward_us": 6, "forward_ws": 1, "backward_ws": 2})";

TEST_SUITE("records.planning_files") {
  TEST_CASE("a profile reads back as it was written") {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      const MemoryProfile profile = sample(seed);
      const auto read = io::read_memory_profile(io::to_json(profile));
      REQUIRE_MESSAGE(read.ok(), read.status().message());
      CHECK(*read == profile);
    }
  }

  TEST_CASE("a profile that was cut off anywhere is refused") {
    const std::string text = io::to_json(sample(3));
    for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
      const auto read = io::read_memory_profile(text.substr(0, size));
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().message().find('\n') == std::string::npos);
    }
  }

  TEST_CASE("a profile with damaged bytes is refused or still a valid problem") {
    const std::string text = io::to_json(sample(4));
    testing::Random random(5);
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = text;
      for (int j = 0; j < 2; ++j)
        damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
      const auto read = io::read_memory_profile(damaged);
      refused += !read.ok();
      if (!read.ok()) continue;
      for (const planner::RankProfile& rank : read->profiles)
        CHECK(planner::validate(rank.problem).ok());
    }
    CHECK(refused > 1000);
  }

  TEST_CASE("an instance is a memory problem: the README's formulas, by hand") {
    const auto read = io::read_instances(instance(kBlock));
    REQUIRE_MESSAGE(read.ok(), read.status().message());
    CHECK(read->front().budgets == std::vector<std::int64_t>{9, 12});
    const MemoryProblem& problem = read->front().problem;
    const auto peak = [&](MemoryAction action) {
      return planner::schedule(problem, std::vector<MemoryAction>{action}).peak_bytes;
    };
    // backward: base 5, boundary 1 + 2, interior 4, outgoing gradient 1, workspace 2
    CHECK(peak(MemoryAction::keep) == 15);
    CHECK(peak(MemoryAction::recompute) == 15);
    const auto step = planner::schedule(problem, std::vector{MemoryAction::offload});
    CHECK(step.added_us == 2 * 1334);  // out and back, 4 MiB at 3 MiB/ms, rounded up
  }

  TEST_CASE("what is wrong with a file of instances is said with its place") {
    struct Case {
      std::string text;
      std::string says;
    };
    const std::string number = R"("interior": 4)";
    const auto with = [&](const std::string& other) {
      std::string block = kBlock;
      return instance(block.replace(block.find(number), number.size(), other));
    };
    const Case cases[] = {
        {"", "byte"},
        {"[]", "expected an object"},
        {"{}", "instances"},
        {R"({"instances": []})", "1 to"},
        {R"({"instances": [7]})", "instance 0"},
        {instance(""), "blocks"},
        {instance(kBlock + "," + kBlock), "boundary"},
        {with(R"("interior": -4)"), "block 0: interior"},
        {with(R"("interior": 4.5)"), "block 0: interior"},
        {with(R"("interior": 1e300)"), "block 0: interior"},
        {with(R"("interior": "4")"), "expected a number, found a text"},
        {with(R"("inside": 4)"), "no such member"},
        {with(R"("interior": 70368744177664)"), "instance 'a'"},
        {std::string(100'000, '['), "byte"},
    };
    for (const Case& c : cases) {
      const auto read = io::read_instances(c.text);
      REQUIRE_FALSE(read.ok());
      CHECK_MESSAGE(read.status().message().find(c.says) != std::string::npos,
                    read.status().message());
    }
  }

  TEST_CASE("a profile of another format or version is refused") {
    for (const char* other : {"1", "3"}) {
      std::string text = io::to_json(sample(6));
      text.replace(text.find("\"version\":2"), 11, std::string("\"version\":") + other);
      const auto read = io::read_memory_profile(text);
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().message() == "memory profile: expected version 2, found " +
                                           std::string(other) + ": written by another release");
    }
    CHECK_FALSE(io::read_memory_profile(R"({"format": "x", "version": 2})").ok());
  }

  TEST_CASE("levels of recompute are members of their own, and a letter each") {
    MemoryProfile profile = sample(7);
    Stage& stage = profile.profiles[0].problem.stages[0];
    stage.options[static_cast<std::size_t>(recompute_level(3))] = {true, 1, 2, 3, 4, 0};
    const std::string text = io::to_json(profile);
    CHECK(text.find(R"("recompute_3":{"kept_bytes":1,)") != std::string::npos);
    CHECK(*io::read_memory_profile(text) == profile);
    using A = MemoryAction;
    CHECK(io::letters({A::keep, A::recompute, A::offload, A::tile, recompute_level(1),
                       recompute_level(7)}) == "KROT17");
  }
}

}  // namespace
}  // namespace cox
