// All ranks switch plans in the same round, whatever happens to control messages: many rounds, with
// ranks as threads, on every path of control traffic.
#include <string>
#include <utility>

#include "coordinator/testing/loopback.h"
#include "tests/runtime/restless_policy.h"
#include "tests/runtime/workers.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using testing::FaultKind;
using testing::FaultRule;
using testing::FaultScript;
using testing::LoopbackOptions;
using testing::LoopbackWorld;

// The thread sanitizer slows threads down many times.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kShorter = 10;
#else
constexpr std::uint64_t kShorter = 1;
#endif

struct Scenario {
  std::string name;
  std::int32_t ranks;
  std::uint64_t rounds;
  ControlPath path;
  std::int32_t ranks_per_node;  // 0 = one node
  bool is_troubled;             // by the fault script
  std::uint64_t rounds_a_switch;
  const char* expected_path;
};

// Loopback's names for the communicators of an exchange between leaders. The exchange is the
// world's third child, after the data of the job and the nodes. Within the exchange, the group of
// leaders comes first, then the group's duplicates.
constexpr const char* kGathers = "world.2:0.0";
constexpr const char* kMasks = "world.2:0.1";

FaultScript trouble(std::uint64_t seed) {
  std::vector<FaultRule> rules;
  for (const char* communicator : {kGathers, kMasks}) {
    for (const FaultKind kind :
         {FaultKind::blank, FaultKind::repeat, FaultKind::garbage, FaultKind::truncate}) {
      FaultRule rule;
      rule.kind = kind;
      rule.communicator = communicator;
      rule.probability = 0.03;
      rules.push_back(rule);
    }
    FaultRule delay;
    delay.kind = FaultKind::delay;
    delay.communicator = communicator;
    delay.probability = 0.2;
    delay.polls = 6;
    rules.push_back(delay);
  }
  return FaultScript(seed, std::move(rules));
}

void expect_agreement(const std::vector<WorkerTrace>& traces, std::uint64_t rounds) {
  for (std::size_t r = 0; r < traces.size(); ++r) {
    INFO("rank " << r);
    CHECK(traces[r].trouble == "");
    REQUIRE(traces[r].rounds.size() == rounds);
    CHECK(traces[r].switches == traces[0].switches);
    CHECK(traces[r].rounds == traces[0].rounds);
  }
}

std::vector<WorkerTrace> run_workers(const LoopbackWorld& world, std::int32_t ranks,
                                     const WorkerOptions& options) {
  std::vector<WorkerTrace> traces(static_cast<std::size_t>(ranks));
  transport::on_every_rank(world, ranks, [&](transport::Communicator& c) {
    traces[static_cast<std::size_t>(c.rank().value())] = train(c, options);
    return std::string();
  });
  return traces;
}

void run_and_compare(const Scenario& scenario, std::uint64_t seed) {
  CAPTURE(scenario.name);
  LoopbackOptions loopback;
  loopback.ranks_per_node = scenario.ranks_per_node;
  if (scenario.is_troubled) loopback.faults = trouble(seed);
  const LoopbackWorld world(scenario.ranks, loopback);
  TallySink tally;
  WorkerOptions options;
  const std::uint64_t rounds = scenario.rounds / kShorter;
  options.rounds = rounds;
  options.path = scenario.path;
  options.policies = {std::make_shared<RestlessPolicy>(seed)};
  options.sink = &tally;
  const auto traces = run_workers(world, scenario.ranks, options);
  expect_agreement(traces, rounds);
  CHECK(traces[0].path == scenario.expected_path);
  CHECK(traces[0].switches >= rounds / scenario.rounds_a_switch);
  if (scenario.is_troubled) {
    CHECK(tally.counters.damaged_reports > 0);
    CHECK(tally.counters.full_plans_resent > 0);
  }
  const Status used_well = world.verify();
  CHECK_MESSAGE(used_well.ok(), used_well.text());
  MESSAGE(scenario.name << ", " << scenario.ranks << " ranks: " << rounds << " rounds, "
                        << traces[0].switches << " switches, " << tally.counters.rounds
                        << " control rounds, " << tally.counters.full_plans_resent
                        << " plans sent again");
}

constexpr auto kAuto = ControlPath::automatic;
constexpr auto kMpi = ControlPath::mpi;

TEST_SUITE("runtime.agreement") {
  TEST_CASE("all ranks have the same plan in every round, through mailboxes") {
    for (const Scenario& scenario : {
             Scenario{"mailboxes", 1, 5'000, kAuto, 0, false, 50, "mailbox"},
             Scenario{"mailboxes", 2, 25'000, kAuto, 0, false, 100, "mailbox"},
             Scenario{"mailboxes", 4, 15'000, kAuto, 0, false, 100, "mailbox"},
             Scenario{"mailboxes", 8, 5'000, kAuto, 0, false, 100, "mailbox"},
         }) {
      run_and_compare(scenario, 11);
    }
  }

  TEST_CASE("all ranks have the same plan in every round, through messages alone") {
    for (const Scenario& scenario : {
             Scenario{"messages", 1, 1'000, kMpi, 0, false, 50, "mailbox"},
             Scenario{"messages", 2, 10'000, kMpi, 0, false, 100, "mpi"},
             Scenario{"messages", 8, 3'000, kMpi, 0, false, 100, "mpi"},
             Scenario{"troubled messages", 2, 10'000, kMpi, 0, true, 200, "mpi"},
             Scenario{"troubled messages", 4, 8'000, kMpi, 0, true, 200, "mpi"},
             Scenario{"troubled messages", 8, 4'000, kMpi, 0, true, 200, "mpi"},
         }) {
      run_and_compare(scenario, 23);
    }
  }

  TEST_CASE("all ranks have the same plan in every round, on nodes of two") {
    for (const Scenario& scenario : {
             Scenario{"nodes", 4, 5'000, kAuto, 2, false, 100, "mailbox+mpi"},
             Scenario{"troubled nodes", 4, 5'000, kAuto, 2, true, 200, "mailbox+mpi"},
             Scenario{"troubled nodes", 8, 4'000, kAuto, 2, true, 200, "mailbox+mpi"},
         }) {
      run_and_compare(scenario, 37);
    }
  }

  TEST_CASE("plans of many frames arrive whole although frames are damaged") {
    LoopbackOptions loopback;
    loopback.faults = trouble(5);
    const LoopbackWorld world(2, loopback);
    WorkerOptions options;
    options.rounds = 4'000 / kShorter;
    options.path = kMpi;
    options.blocks = 700;
    options.policies = {std::make_shared<RestlessPolicy>(5)};
    const auto traces = run_workers(world, 2, options);
    expect_agreement(traces, options.rounds);
    CHECK(traces[0].switches >= 5);
    MESSAGE(traces[0].switches << " switches");
    CHECK(world.verify().ok());
  }
}

}  // namespace
}  // namespace cox::test
