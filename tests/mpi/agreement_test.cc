// All ranks switch plans in the same round over real MPI, on every path, and the journal of such a
// run replays. The ranks compare their records by an all-gather at the end.
#include "tests/mpi/agreement.h"

#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

TEST_SUITE("mpi.agreement") {
  TEST_CASE("all ranks have the same plan in every round, through mailboxes") {
    const auto c = mpi_world(0);
    expect_agreement(*c, train(*c, restless_workers(ControlPath::automatic)));
  }

  TEST_CASE("all ranks have the same plan in every round, through messages alone") {
    const auto c = mpi_world(0);
    const WorkerTrace trace = train(*c, restless_workers(ControlPath::mpi));
    CHECK(trace.path == (c->size() == 1 ? "mailbox" : "mpi"));
    expect_agreement(*c, trace);
  }

  TEST_CASE("all ranks have the same plan in every round, on pretended nodes of two") {
    const auto c = mpi_world(2);
    const WorkerTrace trace = train(*c, restless_workers(ControlPath::automatic));
    CHECK(trace.path == (c->size() <= 2 ? "mailbox" : "mailbox+mpi"));
    expect_agreement(*c, trace);
  }

  TEST_CASE("ranks that only watch end together after different numbers of steps") {
    for (const auto path : {ControlPath::automatic, ControlPath::mpi}) {
      const auto c = mpi_world(0);
      WorkerOptions options;
      options.path = path;
      options.rounds = static_cast<std::uint64_t>(50 + 100 * ((c->rank().value() + 1) % c->size()));
      CHECK(watch(*c, options).trouble == "");
    }
  }

  TEST_CASE("the journal of a run replays to the same plans") {
    const auto c = mpi_world(0);
    TempFolder folder;
    WorkerOptions options = restless_workers(ControlPath::mpi);
    if (c->rank() == kRoot) options.journal = folder / "journal.cox";
    expect_agreement(*c, train(*c, options));
    if (c->rank() == kRoot) expect_replay(options);
  }
}

}  // namespace
}  // namespace cox::test
