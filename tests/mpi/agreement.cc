#include "tests/mpi/agreement.h"

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "coordinator/runtime/replay.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "tests/runtime/restless_policy.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using transport::Communicator;

constexpr std::uint64_t kRounds = 1'000;

// Gathers the plans in force on every rank, in rank order.
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

}  // namespace

std::unique_ptr<Communicator> mpi_world(std::int32_t ranks_per_node) {
  auto runtime = transport::MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  transport::MpiOptions options;
  options.ranks_per_node = ranks_per_node;
  auto made = runtime->world(options);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  return std::move(*made);
}

WorkerOptions restless_workers(ControlPath path) {
  WorkerOptions options;
  options.rounds = kRounds;
  options.path = path;
  options.policies = {std::make_shared<RestlessPolicy>(3)};
  return options;
}

void expect_agreement(Communicator& world, const WorkerTrace& trace) {
  CHECK(trace.trouble == "");
  REQUIRE(trace.rounds.size() >= kRounds);
  const std::size_t rounds = trace.rounds.size();
  const auto all = everybodys(world, trace);
  std::size_t different = 0;
  for (std::size_t i = 0; i < all.size(); ++i) different += all[i] != all[i % rounds] ? 1 : 0;
  CHECK(different == 0);
  CHECK(trace.switches >= 5);
  MESSAGE(world.size() << " ranks, " << trace.path << ": " << trace.switches << " switches");
}

void expect_replay(const WorkerOptions& options) {
  auto reader = runtime::JournalReader::open(options.journal);
  REQUIRE_MESSAGE(reader.ok(), reader.status().text());
  const auto report = runtime::replay(*reader, options.policies, {});
  REQUIRE_MESSAGE(report.ok(), report.status().text());
  for (const std::string& line : report->differences) MESSAGE(line);
  CHECK(report->equal());
  CHECK(report->plans >= 5);
  CHECK(report->torn_bytes == 0);
}

}  // namespace cox::test
