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

TEST_CASE("a thread that was kept away finds what the others have done meanwhile") {
  const LoopbackWorld world(2);
  const auto first = world.communicator(RankId(0));
  const auto second = world.communicator(RankId(1));
  std::array<std::byte, 8> mine{};
  std::array<std::byte, 8> theirs{};
  Result<Request> request = first->start_all_reduce(mine, sum_u64());
  Result<Request> other = failed_precondition("not started");
  const WaitPolicy policy = with_timeout({}, std::chrono::milliseconds(100), "rank 1");
  Status status = wait_with(*first, *request, policy, [&] {
    if (other.ok()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    other = second->start_all_reduce(theirs, sum_u64());
  });
  CHECK(status == ok_status());
  CHECK(finish(*second, other, patient()).ok());
}

TEST_CASE("a wait with long gaps ends as well, after many looks") {
  WaitLimit limit(std::chrono::milliseconds(20));
  int looks = 1;
  for (; !limit.is_over(); ++looks) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(looks > 10);
  CHECK(limit.longest_gap() >= std::chrono::milliseconds(10));
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
