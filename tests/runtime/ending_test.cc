// Jobs end well: ranks that finish at different times all leave, none hangs, and their records
// match.
#include <algorithm>
#include <string>

#include "coordinator/testing/loopback.h"
#include "tests/runtime/restless_policy.h"
#include "tests/runtime/workers.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using testing::LoopbackOptions;
using testing::LoopbackWorld;

struct Ending {
  std::string path;
  ControlPath control;
  std::int32_t ranks;
  std::int32_t ranks_per_node;
};

const std::vector<Ending> kEndings = {{"mailbox", ControlPath::automatic, 1, 0},
                                      {"mailbox", ControlPath::automatic, 4, 0},
                                      {"mpi", ControlPath::mpi, 2, 0},
                                      {"mpi", ControlPath::mpi, 5, 0},
                                      {"mailbox+mpi", ControlPath::automatic, 5, 2},
                                      {"mailbox+mpi", ControlPath::automatic, 8, 4}};

// Runs `watch` with a number of steps for each rank. Returns how often each rank reported.
TallySink watch_all(const Ending& ending, const std::vector<std::uint64_t>& steps,
                    testing::FaultScript faults = {}) {
  LoopbackOptions loopback;
  loopback.ranks_per_node = ending.ranks_per_node;
  loopback.faults = std::move(faults);
  const LoopbackWorld world(ending.ranks, loopback);
  TallySink tally;
  std::vector<WorkerTrace> traces(steps.size());
  transport::on_every_rank(world, ending.ranks, [&](transport::Communicator& c) {
    const auto r = static_cast<std::size_t>(c.rank().value());
    WorkerOptions options;
    options.rounds = steps[r];
    options.path = ending.control;
    options.late_seconds = 0.02;
    options.sink = &tally;
    traces[r] = watch(c, options);
    return std::string();
  });
  for (const WorkerTrace& trace : traces) {
    CHECK(trace.trouble == "");
    CHECK(trace.path == ending.path);
  }
  const Status used_well = world.verify();
  CHECK_MESSAGE(used_well.ok(), used_well.text());
  return tally;
}

std::vector<std::uint64_t> different_steps(std::int32_t ranks, std::int32_t longest) {
  std::vector<std::uint64_t> steps;
  for (std::int32_t r = 0; r < ranks; ++r) steps.push_back(static_cast<std::uint64_t>(3 * r));
  steps[static_cast<std::size_t>(longest)] = 1'000;
  return steps;
}

TEST_SUITE("runtime.ending") {
  TEST_CASE("ranks that only watch leave whenever they are done, and all are heard") {
    for (const Ending& ending : kEndings) {
      for (std::int32_t longest = 0; longest < ending.ranks; ++longest) {
        CAPTURE(ending.path);
        CAPTURE(longest);
        const TallySink tally = watch_all(ending, different_steps(ending.ranks, longest));
        CHECK(std::ranges::count(tally.reports_of_rank, 0u) == 0);
        CHECK(tally.counters.stale_reports == 0);
      }
    }
  }

  TEST_CASE("ranks that watch without a single step leave as well") {
    for (const Ending& ending : kEndings) {
      CAPTURE(ending.path);
      watch_all(ending, std::vector<std::uint64_t>(static_cast<std::size_t>(ending.ranks), 0));
    }
  }

  TEST_CASE("a parcel lost at the end keeps nobody") {
    for (const auto kind :
         {testing::FaultKind::blank, testing::FaultKind::garbage, testing::FaultKind::repeat}) {
      testing::FaultRule rule;
      rule.kind = kind;
      rule.communicator = "world.1:0.1";  // the masks' communicator: watchers have none for data
      rule.rank = RankId(1);
      rule.probability = 0.2;
      const TallySink tally =
          watch_all({"mpi", ControlPath::mpi, 3, 0}, {40, 20, 60}, {77, {rule}});
      CHECK(std::ranges::count(tally.reports_of_rank, 0u) == 0);
    }
  }

  TEST_CASE("where a leader cannot start its exchange, all leave and know its name") {
    struct Broken {
      Ending ending;
      const char* gathers;  // the leaders' communicator; training workers have one more for data
      WorkerTrace (*run)(transport::Communicator&, const WorkerOptions&);
    };
    const std::vector<Broken> jobs = {
        {{"mpi", ControlPath::mpi, 3, 0}, "world.1:0.0", watch},
        {{"mpi", ControlPath::mpi, 3, 0}, "world.2:0.0", train},
        {{"mailbox+mpi", ControlPath::automatic, 5, 2}, "world.1:0.0", watch},
        {{"mailbox+mpi", ControlPath::automatic, 5, 2}, "world.2:0.0", train}};
    for (const Broken& job : jobs) {
      for (const std::int32_t leader : {0, 1}) {
        CAPTURE(job.ending.path);
        CAPTURE(leader);
        testing::FaultRule rule;
        rule.kind = testing::FaultKind::refuse;
        rule.communicator = job.gathers;
        rule.rank = RankId(leader);
        rule.first = 6;  // two operations in each round
        LoopbackOptions loopback;
        loopback.ranks_per_node = job.ending.ranks_per_node;
        loopback.faults = {1, {rule}};
        const LoopbackWorld world(job.ending.ranks, loopback);
        WorkerOptions options;
        options.rounds = 100;
        options.path = job.ending.control;
        options.late_seconds = 0.02;
        std::vector<WorkerTrace> traces(static_cast<std::size_t>(job.ending.ranks));
        transport::on_every_rank(world, job.ending.ranks, [&](transport::Communicator& c) {
          traces[static_cast<std::size_t>(c.rank().value())] = job.run(c, options);
          return std::string();
        });
        const std::int32_t per_node = std::max(1, job.ending.ranks_per_node);
        const std::string name = "rank " + std::to_string(leader * per_node);
        for (std::int32_t r = 0; r < job.ending.ranks; ++r) {
          const WorkerTrace& trace = traces[static_cast<std::size_t>(r)];
          CHECK(trace.trouble == "");
          if (r % per_node != 0) continue;  // not a leader
          CHECK_FALSE(trace.control.ok());
          const std::string says = trace.control.text();
          CHECK_MESSAGE((r == leader * per_node || says.find(name) != std::string::npos), says);
        }
      }
    }
  }

  TEST_CASE("a rank that reports late holds nobody up for ever and is heard later") {
    for (const Ending& ending : kEndings) {
      if (ending.ranks < 4) continue;
      CAPTURE(ending.path);
      LoopbackOptions loopback;
      loopback.ranks_per_node = ending.ranks_per_node;
      const LoopbackWorld world(ending.ranks, loopback);
      TallySink tally;
      WorkerOptions options;
      options.rounds = 65;
      options.path = ending.control;
      options.late_seconds = 0.005;
      options.late_rank = 1;
      options.sink = &tally;
      std::vector<WorkerTrace> traces(static_cast<std::size_t>(ending.ranks));
      transport::on_every_rank(world, ending.ranks, [&](transport::Communicator& c) {
        traces[static_cast<std::size_t>(c.rank().value())] = train(c, options);
        return std::string();
      });
      for (const WorkerTrace& trace : traces) CHECK(trace.trouble == "");
      CHECK(world.verify().ok());
      CHECK(tally.counters.rounds > 0);
      CHECK(tally.reports_of_rank[1] > 0);
      // A rank alone on its node cannot be late, because leaders wait for each other.
      if (ending.path != "mpi") CHECK(tally.counters.missing_reports > 0);
    }
  }
}

}  // namespace
}  // namespace cox::test
