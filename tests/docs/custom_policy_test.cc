// The examples of docs/writing-a-policy.md for testing a policy: simulated jobs, no ranks, no
// torch.
#include <filesystem>
#include <memory>

#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/testing/simulated_job.h"
#include "sdk/examples/speed_shares.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace {

cox::PolicySet with_speed_shares() {
  cox::PolicySet policies = cox::default_policies();
  policies.push_back(std::make_shared<example::SpeedShares>());
  return policies;
}

// Returns a job of four ranks, of which rank 2 needs twice the time.
cox::testing::SimulatedJob job_with_a_slow_rank(const cox::Config& config = {}) {
  cox::testing::Scenario scenario;
  scenario.ranks = 4;
  scenario.slowdowns = {{.rank = cox::RankId(2), .phase = {}, .extra_ratio = 1.0}};
  return {scenario, config, with_speed_shares(), {.shares = true}};
}

cox::StepSignals next_signals(cox::testing::SimulatedJob& job) {
  return cox::collect(job.now(), job.job().incarnation, job.job().world_size, job.reports(), {},
                      job.clock());
}

TEST_SUITE("docs.custom_policy") {
  // [outcome]
  TEST_CASE("a rank of half the speed gets about half the samples of the others") {
    cox::testing::SimulatedJob job = job_with_a_slow_rank();
    for (int i = 0; i < 100; ++i) job.round();
    const auto& shares = job.active().shares;
    REQUIRE(shares.size() == 4);
    for (const std::size_t other : {0u, 1u, 3u}) {
      CHECK(shares[2] / double(shares[other]) == doctest::Approx(0.5).epsilon(0.1));
    }
  }
  // [/outcome]

  // [replay]
  TEST_CASE("its journal replays to the same plans and reasons") {
    const cox::test::TempFolder folder;
    cox::testing::SimulatedJob job = job_with_a_slow_rank();
    auto journal = cox::runtime::JournalWriter::open(
        folder / "journal.cox", {job.job(), {}, job.state(), with_speed_shares()});
    REQUIRE(journal.ok());
    for (int i = 0; i < 200; ++i) {
      const cox::StepSignals signals = next_signals(job);
      REQUIRE((*journal)->append(signals, job.decide_on(signals)).ok());
    }
    REQUIRE((*journal)->close().ok());

    auto reader = cox::runtime::JournalReader::open(folder / "journal.cox");
    REQUIRE(reader.ok());
    const auto report = cox::runtime::replay(*reader, with_speed_shares(), {});
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK(report->plans > 0);
    CHECK(report->equal());
  }
  // [/replay]

  TEST_CASE("it can be told to observe, and then says what it would have done") {
    cox::Config config;
    config.policy_modes["speed_shares"] = cox::PolicyMode::observe;
    cox::testing::SimulatedJob job = job_with_a_slow_rank(config);
    int observed = 0;
    for (int i = 0; i < 100; ++i) {
      for (const cox::Reason& reason : job.round().reasons) {
        observed += reason.outcome == cox::Outcome::observed ? 1 : 0;
      }
    }
    CHECK(observed > 0);
    CHECK(job.active().id.number == 0);
  }

  TEST_CASE("a state of another world size counts as fresh") {
    cox::testing::SimulatedJob job = job_with_a_slow_rank();
    const cox::StepSignals signals = next_signals(job);
    const cox::StepSummary summary = cox::summarize(signals);
    const cox::Config config;
    const cox::Plan plan = cox::initial_plan(job.job());
    const cox::Estimates estimates;
    const cox::Effects effects;
    const cox::PolicyInput input{job.job(),           config, plan, signals, summary, estimates,
                                 job.state().history, effects};
    const example::SpeedShares policy;
    const auto of_two_ranks = cox::PolicyState::of(example::SpeedSharesState{19, {1e6, 1}, {1, 1}});
    const cox::PolicyOutput output = policy.propose(input, of_two_ranks);
    CHECK(output.proposals.empty());
    CHECK(output.state == policy.propose(input, {}).state);
  }
}

}  // namespace
