#include "coordinator/transport/wait.h"

#include <array>
#include <string>

#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

TEST_SUITE_BEGIN("wait");

TEST_CASE("ranks that outnumber the cores do not spin") {
  CHECK(wait_policy(4, 2).spins == 0);
  CHECK(wait_policy(4, 2).yields > 0);
  CHECK(wait_policy(2, 2).spins > 0);
  CHECK(usable_cores() >= 1);
}

TEST_CASE("without a timeout a waiter never gives up") {
  WaitPolicy policy{.spins = 2, .yields = 2, .sleep = std::chrono::microseconds(1)};
  Waiter waiter(policy);
  for (int i = 0; i < 500; ++i) CHECK(waiter.pause().ok());
}

TEST_CASE("a timeout is seen in every stage of the waiting") {
  for (const WaitPolicy& stage : {WaitPolicy{.yields = 1u << 31}, WaitPolicy{}}) {
    Waiter waiter(with_timeout(stage, std::chrono::milliseconds(5), "Godot"));
    Status status;
    while (status.ok()) status = waiter.pause();
    CHECK(status.code() == StatusCode::unavailable);
    CHECK(status.message().find("for Godot") != std::string::npos);
  }
}

TEST_CASE("the pump runs between the polls of a wait") {
  LoopbackOptions options;
  options.faults = FaultScript(1, {{.kind = FaultKind::delay, .polls = 1}});
  const LoopbackWorld world(1, options);
  const auto c = world.communicator(RankId(0));
  std::array<std::byte, 8> buffer{};
  Result<Request> request = c->start_all_reduce(buffer, sum_u64());
  int pumped = 0;
  CHECK(wait_with(*c, *request, patient(), [&] { ++pumped; }).ok());
  CHECK(pumped == 1);
}

TEST_CASE("an operation that did not start is not waited for") {
  const LoopbackWorld world(1);
  const auto c = world.communicator(RankId(0));
  CHECK(finish(*c, c->start_broadcast({}, RankId(1)), patient()).code() ==
        StatusCode::invalid_argument);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
