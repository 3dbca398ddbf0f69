#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/policies/registry.h"
#include "coordinator/policies/stragglers/stragglers.h"
#include "coordinator/testing/simulated_job.h"

#include <doctest/doctest.h>

namespace {

using cox::Phase;
using cox::RankId;
using cox::ReasonCode;
using cox::testing::Scenario;
using cox::testing::SimulatedJob;

std::vector<cox::Reason> told(SimulatedJob& job, int rounds) {
  std::vector<cox::Reason> all;
  for (int i = 0; i < rounds; ++i) {
    for (cox::Reason& reason : job.round().reasons) all.push_back(std::move(reason));
  }
  return all;
}

std::vector<cox::Reason> told(const Scenario& scenario, int rounds,
                              const cox::Config& config = {}) {
  SimulatedJob job(scenario, config, cox::default_policies());
  return told(job, rounds);
}

double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  return at == std::string::npos ? -1e9 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

Scenario small(std::int32_t ranks) {
  Scenario scenario;
  scenario.ranks = ranks;
  scenario.step_noise = 0.01;
  return scenario;
}

}  // namespace

TEST_SUITE("policies") {
  TEST_CASE("a finding says rank, amount, phase, onset and how sure, and changes no plan") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{RankId(3), Phase::forward, 0.25, 40}};
    SimulatedJob job(scenario, {}, cox::default_policies());
    const std::vector<cox::Reason> reasons = told(job, 80);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].code == ReasonCode::straggler_found);
    CHECK(reasons[0].outcome == cox::Outcome::reported);
    CHECK(reasons[0].policy == cox::PolicyKind::stragglers);
    CHECK(reasons[0].rank == RankId(3));
    CHECK(reasons[0].round.value() >= 43);
    CHECK(reasons[0].round.value() <= 48);
    CHECK(std::abs(number_after(reasons[0].text, "rank 3 is ") - 25) <= 5);
    CHECK(reasons[0].text.find("in forward, since round ") != std::string::npos);
    CHECK(std::abs(number_after(reasons[0].text, "since round ") - 40) <= 2);
    CHECK(reasons[0].text.find("once in 10^") != std::string::npos);
    CHECK(job.state().plan.id.number == 0);
  }

  TEST_CASE("a rank that was slow from the start is named once it has made enough reports") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{RankId(5), std::nullopt, 0.5, 0}};
    const std::vector<cox::Reason> reasons = told(scenario, 40);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].rank == RankId(5));
    CHECK(reasons[0].round.value() == cox::StragglerConfig{}.min_rounds);
  }

  TEST_CASE("a slowdown that ends is told to be gone, and one that returns is named again") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{RankId(2), Phase::data, 0.3, 30, 80},
                          {RankId(2), Phase::data, 0.3, 150}};
    const std::vector<cox::Reason> reasons = told(scenario, 200);
    REQUIRE(reasons.size() == 3);
    CHECK(reasons[1].code == ReasonCode::straggler_gone);
    CHECK(reasons[1].round.value() >= 80);
    CHECK(reasons[1].round.value() <= 110);
    CHECK(reasons[2].code == ReasonCode::straggler_found);
    CHECK(reasons[2].round.value() >= 150);
  }

  TEST_CASE("a slowdown that moves to another phase is told to have moved") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{RankId(1), Phase::data, 0.3, 30, 80},
                          {RankId(1), Phase::backward, 0.3, 80}};
    const std::vector<cox::Reason> reasons = told(scenario, 150);
    REQUIRE(reasons.size() == 2);
    CHECK(reasons[1].code == ReasonCode::straggler_phase_moved);
    CHECK(reasons[1].text.find("in backward, before in data") != std::string::npos);
  }

  TEST_CASE("a slow rank whose phases are noisy is not told to move from one to another") {
    Scenario scenario = small(4);
    scenario.phase_noise = 0.3;
    scenario.slowdowns = {{RankId(2), std::nullopt, 0.2, 0}};
    const std::vector<cox::Reason> reasons = told(scenario, 3'000);
    const auto moved =
        std::ranges::count(reasons, ReasonCode::straggler_phase_moved, &cox::Reason::code);
    CHECK(moved <= 3);
  }

  TEST_CASE("a rank that finishes is no straggler any more") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{RankId(7), Phase::data, 0.3, 20}};
    scenario.finish_from = 60;
    const std::vector<cox::Reason> reasons = told(scenario, 80);
    REQUIRE(reasons.size() == 2);
    CHECK(reasons[1].code == ReasonCode::straggler_gone);
    CHECK(reasons[1].round.value() == 60);
  }

  TEST_CASE("all ranks slow at once is nobody's fault") {
    Scenario scenario = small(6);
    for (int r = 0; r < 6; ++r) scenario.slowdowns.push_back({RankId(r), std::nullopt, 0.5, 40});
    const std::vector<cox::Reason> reasons = told(scenario, 100);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].code == ReasonCode::straggler_job_slow);
    CHECK(reasons[0].rank == RankId(-1));
    CHECK(std::abs(number_after(reasons[0].text, "the job as a whole is ") - 50) <= 5);
    CHECK(std::abs(number_after(reasons[0].text, "since round ") - 40) <= 1);
    Scenario two = small(2);
    for (int r = 0; r < 2; ++r) two.slowdowns.push_back({RankId(r), std::nullopt, 0.5, 60});
    const std::vector<cox::Reason> of_two = told(two, 120);
    REQUIRE(of_two.size() == 1);
    CHECK(of_two[0].code == ReasonCode::straggler_job_slow);
  }

  TEST_CASE("a slow host is named, and its ranks") {
    Scenario scenario = small(12);
    scenario.ranks_per_node = 4;
    for (int r = 4; r < 8; ++r) scenario.slowdowns.push_back({RankId(r), std::nullopt, 0.4, 30});
    int ranks = 0;
    std::vector<cox::Reason> hosts;
    for (cox::Reason& reason : told(scenario, 80)) {
      ranks += reason.code == ReasonCode::straggler_found;
      if (reason.code == ReasonCode::straggler_host) hosts.push_back(std::move(reason));
    }
    CHECK(ranks == 4);
    REQUIRE(hosts.size() == 1);
    CHECK(hosts[0].text.find("all 4 ranks of host 1 are slow") == 0);
  }

  TEST_CASE("of two ranks the one that is slow from the start is named, with its phase") {
    Scenario scenario = small(2);
    scenario.slowdowns = {{RankId(1), Phase::backward, 0.3, 0}};
    const std::vector<cox::Reason> reasons = told(scenario, 100);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].rank == RankId(1));
    CHECK(reasons[0].text.find("slower than the other rank") != std::string::npos);
    CHECK(reasons[0].text.find("in backward") != std::string::npos);
    CHECK(std::abs(number_after(reasons[0].text, "rank 1 is ") - 30) <= 4);
    scenario.slowdowns = {{RankId(1), Phase::backward, 0.13, 0}};  // below the floor of 15 %
    CHECK(told(scenario, 1000).empty());
  }

  TEST_CASE("pauses are counted and told, but nobody is named for them") {
    Scenario scenario = small(8);
    scenario.slowdowns = {{.rank = RankId(5),
                           .phase = Phase::forward,
                           .extra_ratio = 1.5,
                           .from = 30,
                           .until = cox::testing::kForever,
                           .shape = cox::testing::SlowShape::on_off,
                           .on_rounds = 5,
                           .period_rounds = 50}};
    const std::vector<cox::Reason> reasons = told(scenario, 30 + 20 * 50);
    REQUIRE_FALSE(reasons.empty());
    for (const cox::Reason& reason : reasons) {
      CHECK(reason.code == ReasonCode::straggler_transient);
      CHECK(reason.rank == RankId(5));
    }
  }

  TEST_CASE("with one or two ranks a rank is compared with its own past") {
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      Scenario scenario = small(ranks);
      scenario.common_noise = 0;
      scenario.slowdowns = {{RankId(ranks - 1), Phase::forward, 0.2, 60, 100}};
      const std::vector<cox::Reason> reasons = told(scenario, 160);
      REQUIRE(reasons.size() == 2);
      CHECK(reasons[0].code == ReasonCode::straggler_found);
      CHECK(reasons[0].rank == RankId(ranks - 1));
      CHECK(reasons[0].round.value() >= 60);
      CHECK(reasons[0].round.value() <= 80);
      CHECK(reasons[0].text.find(ranks == 1 ? "in its own past" : "slower than") !=
            std::string::npos);
      CHECK(reasons[1].code == ReasonCode::straggler_gone);
    }
  }

  TEST_CASE("a rank that is much noisier than the others is not named for that") {
    Scenario scenario = small(16);
    scenario.step_noise = 0.01;
    cox::testing::Random random(9);
    for (std::uint64_t round = 1; round <= 3000; ++round) {
      const double wobble = 0.08 * random.normal();
      scenario.slowdowns.push_back({RankId(4), std::nullopt, wobble, round, round + 1});
    }
    CHECK(told(scenario, 3000).empty());
  }

  TEST_CASE("slowdowns below the one worth naming stay unnamed") {
    Scenario scenario = small(16);
    scenario.step_noise = 0.005;
    scenario.slowdowns = {{RankId(4), std::nullopt, 0.02, 20}};
    CHECK(told(scenario, 2000).empty());
  }

  TEST_CASE("missing reports only delay a finding") {
    Scenario scenario = small(8);
    scenario.missing = 0.3;
    scenario.stale = 0.1;
    scenario.slowdowns = {{RankId(3), Phase::backward, 0.2, 40}};
    int found = 0;
    for (const cox::Reason& reason : told(scenario, 120)) {
      found += reason.code == ReasonCode::straggler_found && reason.rank == RankId(3);
    }
    CHECK(found == 1);
  }

  TEST_CASE("a restart says nothing again, and a damaged state says nothing of other worlds") {
    Scenario scenario = small(4);
    scenario.slowdowns = {{RankId(3), Phase::forward, 0.5, 20}};
    SimulatedJob job(scenario, {}, cox::default_policies());
    REQUIRE(told(job, 60).size() == 1);
    cox::ControlState state = job.state();
    cox::Estimates estimates =
        cox::state_of(state, cox::kEstimates).take_or_fresh<cox::Estimates>();
    const cox::StepSignals signals;
    const cox::StepSummary summary;
    const cox::Config config;
    const cox::Effects effects;
    const cox::PolicyInput input{job.job(), config,    state.plan,    signals,
                                 summary,   estimates, state.history, effects};
    const cox::Stragglers policy;
    const cox::PolicyState kept = cox::state_of(state, "stragglers");
    CHECK(policy.propose(input, kept).findings.empty());
    CHECK(policy.at_start(input, kept).findings.empty());
    CHECK(policy.propose(input, policy.at_start(input, {}).state).findings.empty());
    CHECK(policy.propose(input, {}).findings.size() == 1);
    cox::testing::Random random(2);
    for (int i = 0; i < 2000; ++i) {
      std::string bytes = kept.bytes();
      bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
      const cox::PolicyOutput output = policy.propose(input, cox::PolicyState::from_bytes(bytes));
      for (const cox::Reason& reason : output.findings) REQUIRE(reason.rank.value() < 4);
      CHECK(output.state == kept);
    }
  }
}
