// Four ranks on two nodes without shared memory (tests/support/two_nodes). Other tests imitate
// nodes by a setting.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/transport/wait.h"
#include "tests/mpi/agreement.h"
#include "tests/runtime/driven_job.h"
#include "tests/transport/conformance.h"
#include "tests/transport/exchange_trial.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using transport::Communicator;

using HostName = std::array<char, 64>;

HostName host_name() {
  HostName name{};
  REQUIRE(gethostname(name.data(), name.size() - 1) == 0);
  return name;
}

// Gathers one value from every rank, in rank order.
template <class T>
std::vector<T> everybodys(Communicator& c, T mine) {
  std::vector<T> all(static_cast<std::size_t>(c.size()));
  const Status gathered = transport::finish(
      c,
      c.start_all_gather(std::as_bytes(std::span<const T>(&mine, 1)),
                         std::as_writable_bytes(std::span<T>(all))),
      transport::with_timeout(transport::wait_policy(c.size(), transport::usable_cores()),
                              std::chrono::seconds(60), "the comparison"));
  REQUIRE_MESSAGE(gathered.ok(), gathered.text());
  return all;
}

TEST_SUITE("mpi.two_nodes") {
  TEST_CASE("ranks of one host are a node, and memory is shared within it only") {
    const auto c = mpi_world(0);
    const std::vector<HostName> hosts = everybodys(*c, host_name());
    REQUIRE(std::set<HostName>(hosts.begin(), hosts.end()).size() == 2);
    CHECK(c->ranks_on_node() == 2);
    CHECK(c->shared_segment(64).status().code() == StatusCode::failed_precondition);

    auto node = c->split_by_node();
    REQUIRE_MESSAGE(node.ok(), node.status().text());
    const std::vector<HostName> neighbours = everybodys(**node, host_name());
    CHECK(neighbours == std::vector<HostName>(2, host_name()));
    const auto segment = (*node)->shared_segment(64);
    REQUIRE_MESSAGE(segment.ok(), segment.status().text());
    const std::byte mark{static_cast<unsigned char>(c->rank().value() + 1)};
    segment->bytes()[static_cast<std::size_t>((*node)->rank().value())] = mark;
    everybodys(*c, 0);  // all ranks of both nodes have written
    const int lowest = c->rank().value() / 2 * 2;
    CHECK(segment->bytes()[0] == std::byte{static_cast<unsigned char>(lowest + 1)});
    CHECK(segment->bytes()[1] == std::byte{static_cast<unsigned char>(lowest + 2)});
    everybodys(*c, 0);  // all ranks have read
  }

  TEST_CASE("the transport does what every transport must do") {
    const auto c = mpi_world(0);
    for (const transport::ConformanceCase& item : transport::conformance_cases()) {
      CHECK_MESSAGE(item.run(*c) == "", item.name << ", rank " << c->rank().value());
    }
  }

  TEST_CASE("buckets are summed in memory within a node and by messages between the nodes") {
    const auto c = mpi_world(0);
    transport::ExchangeTrial trial;
    trial.ranks_per_node = 2;
    trial.options = transport::impatient_options(transport::SharedMemory::use, 0);
    trial.expected_path = "shared memory and mpi";
    for (trial.seed = 1; trial.seed <= 5; ++trial.seed) CHECK(try_exchange(*c, trial) == "");
  }

  TEST_CASE("control rounds between leaders give all ranks the same plan in every round") {
    const auto c = mpi_world(0);
    TempFolder folder;
    WorkerOptions options = restless_workers(ControlPath::automatic);
    if (c->rank() == kRoot) options.journal = folder / "journal.cox";
    const WorkerTrace trace = train(*c, options);
    CHECK(trace.path == "mailbox+mpi");
    CHECK_MESSAGE(trace.control.ok(), trace.control.text());
    expect_agreement(*c, trace);
    if (c->rank() == kRoot) expect_replay(options);
  }

  TEST_CASE("ranks that only watch end together after different numbers of steps") {
    const auto c = mpi_world(0);
    WorkerOptions options;
    options.rounds = static_cast<std::uint64_t>(50 + 100 * ((c->rank().value() + 1) % c->size()));
    CHECK(watch(*c, options).trouble == "");
  }
}

}  // namespace
}  // namespace cox::test
