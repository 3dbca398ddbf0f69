// All ranks switch plans in the same round over real MPI, on every path, and the journal of such a
// run replays. The ranks compare what they wrote down by an all-gather in the end.
#include <chrono>
#include <memory>
#include <string>

#include "coordinator/runtime/replay.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "tests/runtime/driven_job.h"
#include "tests/runtime/restless_policy.h"
#include "tests/runtime/workers.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using transport::Communicator;

constexpr std::uint64_t kRounds = 1'000;

std::unique_ptr<Communicator> world(std::int32_t ranks_per_node) {
  auto runtime = transport::MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  transport::MpiOptions options;
  options.ranks_per_node = ranks_per_node;
  auto made = runtime->world(options);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  return std::move(*made);
}

// What every rank had in force, in rank order.
std::vector<InForce> everybodys(Communicator& c, const WorkerTrace& trace) {
  std::vector<InForce> all(trace.rounds.size() * static_cast<std::size_t>(c.size()));
  const Status gathered = transport::finish(
      c,
      c.start_all_gather(std::as_bytes(std::span(trace.rounds)),
                         std::as_writable_bytes(std::span(all))),
      transport::with_timeout(transport::wait_policy(c.size(), transport::usable_cores()),
                              std::chrono::seconds(30), "the comparison"));
  REQUIRE_MESSAGE(gathered.ok(), gathered.text());
  return all;
}

void expect_agreement(Communicator& c, const WorkerTrace& trace) {
  CHECK(trace.trouble == "");
  REQUIRE(trace.rounds.size() == kRounds);
  const auto all = everybodys(c, trace);
  std::size_t different = 0;
  for (std::size_t i = 0; i < all.size(); ++i) different += all[i] != all[i % kRounds] ? 1 : 0;
  CHECK(different == 0);
  CHECK(trace.switches >= 5);
  MESSAGE(c.size() << " ranks, " << trace.path << ": " << trace.switches << " switches");
}

WorkerOptions options_for(ControlPath path) {
  WorkerOptions options;
  options.rounds = kRounds;
  options.path = path;
  options.policies = {std::make_shared<RestlessPolicy>(3)};
  return options;
}

TEST_SUITE("mpi.agreement") {
  TEST_CASE("all ranks have the same plan in every round, through mailboxes") {
    const auto c = world(0);
    expect_agreement(*c, train(*c, options_for(ControlPath::automatic)));
  }

  TEST_CASE("all ranks have the same plan in every round, through messages alone") {
    const auto c = world(0);
    const WorkerTrace trace = train(*c, options_for(ControlPath::mpi));
    CHECK(trace.path == (c->size() == 1 ? "mailbox" : "mpi"));
    expect_agreement(*c, trace);
  }

  TEST_CASE("all ranks have the same plan in every round, on pretended nodes of two") {
    const auto c = world(2);
    const WorkerTrace trace = train(*c, options_for(ControlPath::automatic));
    CHECK(trace.path == (c->size() <= 2 ? "mailbox" : "mailbox+mpi"));
    expect_agreement(*c, trace);
  }

  TEST_CASE("ranks that only watch end together after different numbers of steps") {
    for (const auto path : {ControlPath::automatic, ControlPath::mpi}) {
      const auto c = world(0);
      WorkerOptions options;
      options.path = path;
      options.rounds = static_cast<std::uint64_t>(50 + 100 * ((c->rank().value() + 1) % c->size()));
      CHECK(watch(*c, options).trouble == "");
    }
  }

  TEST_CASE("the journal of a run replays to the same plans") {
    const auto c = world(0);
    TempFolder folder;
    WorkerOptions options = options_for(ControlPath::mpi);
    if (c->rank() == kRoot) options.journal = folder / "journal.cox";
    expect_agreement(*c, train(*c, options));
    if (c->rank() != kRoot) return;
    auto reader = runtime::JournalReader::open(options.journal);
    REQUIRE_MESSAGE(reader.ok(), reader.status().text());
    const auto report = runtime::replay(*reader, options.policies, {});
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    for (const std::string& line : report->differences) MESSAGE(line);
    CHECK(report->equal());
    CHECK(report->plans >= 5);
    CHECK(report->torn_bytes == 0);
  }
}

}  // namespace
}  // namespace cox::test
