// The first step runs under the policies' first plan: only rank 0 knows the fronts, and all ranks
// start from its plan.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/control_plane.h"
#include "coordinator/testing/loopback.h"
#include "coordinator/transport/solo.h"
#include "tests/runtime/workers.h"
#include "tests/support/no_threads.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

constexpr std::int32_t kRanks = 4;

MemoryFacts small_facts() {
  MemoryModel model;
  model.front = {{600, 20, std::vector(2, MemoryAction::recompute)},
                 {800, 10, {MemoryAction::keep, MemoryAction::offload}},
                 {1000, 0, std::vector(2, MemoryAction::keep)}};
  model.step_us = 100;
  return {{model}, {}, {}};
}

runtime::ControlPlaneSetup setup_of(RankId rank, const MemoryFacts& facts) {
  runtime::ControlPlaneSetup setup;
  setup.job = job_of_workers(kRanks, 2);
  if (rank == kRoot) setup.job.memory = facts;
  const Status status =
      apply_text(setup.config, "memory.budget_of_rank = 0:700,2:900,3:900\n", "test");
  if (!status.ok()) setup.job.blocks.clear();
  setup.policies = default_policies();
  setup.now = [] { return UnixTime{}; };
  return setup;
}

// Returns the first actions of each rank.
std::vector<std::vector<MemoryAction>> first_actions(const MemoryFacts& facts) {
  const testing::LoopbackWorld world(kRanks, {});
  std::vector<std::vector<MemoryAction>> actions(kRanks);
  const auto troubles = transport::on_every_rank(world, kRanks, [&](transport::Communicator& c) {
    auto plane = runtime::ControlPlane::start(c, setup_of(c.rank(), facts));
    if (!plane.ok()) return plane.status().text();
    const Plan& plan = (*plane)->plan();
    const auto rank = static_cast<std::size_t>(c.rank().value());
    actions[rank] = plan.profiles[profile_of(plan, c.rank()).value()];
    RankSignal last;
    last.rank = c.rank();
    last.incarnation = (*plane)->job().incarnation;
    static_cast<void>((*plane)->finish(last));
    return std::string(plan.id.number == 0 ? "" : "expected plan 0");
  });
  for (const std::string& trouble : troubles) CHECK(trouble == "");
  return actions;
}

TEST_SUITE("runtime.agreement") {
  TEST_CASE("all ranks start from the memory plan that rank 0 made before the first round") {
    const MemoryFront front = small_facts().models[0].front;
    const auto actions = first_actions(small_facts());
    CHECK(actions[0] == front[0].actions);
    CHECK(actions[1] == front[2].actions);
    CHECK(actions[2] == front[1].actions);
    CHECK(actions[3] == front[1].actions);
  }

  TEST_CASE("a job whose coordinator gets no thread does not start, and says which limit it met") {
    const NoThreads none;
    const auto alone = transport::solo_communicator();
    runtime::ControlPlaneSetup setup;
    setup.job = job_of_workers(1, 2);
    setup.policies = default_policies();
    setup.now = [] { return UnixTime{}; };
    const Status refused = runtime::ControlPlane::start(*alone, std::move(setup)).status();
    CHECK(refused.code() == StatusCode::resource_exhausted);
    CHECK(refused.message().starts_with(
        "coordinator: its thread could not be started: no room for its stack"));
  }

  TEST_CASE("facts of memory that are none are dropped, and training starts without a plan") {
    MemoryFacts facts = small_facts();
    std::swap(facts.models[0].front[0], facts.models[0].front[1]);
    for (const auto& actions : first_actions(facts)) {
      CHECK(actions == std::vector(2, MemoryAction::keep));
    }
  }
}

}  // namespace
}  // namespace cox::test
