#include "coordinator/wire/control_codec.h"

#include <string>

#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

using test::capable_job;
using test::RandomValues;
using test::same_bits;

TEST_SUITE("wire.control") {
  TEST_CASE("every value comes back bit for bit") {
    RandomValues random(2);
    for (int round = 0; round < 300; ++round) {
      JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(9)), random.below(20));
      job.name = "caf\xe9";
      if (random.chance(50))
        job.node_of_rank.assign(static_cast<std::size_t>(job.world_size), NodeId(2));
      const ParseLimits limits = limits_of(job);
      CHECK(*parse_job_facts(serialize(job)) == job);

      Plan plan = random.plan(job, random.bits());
      if (random.chance(50)) plan.activated_round = RoundId(0);
      CHECK(*parse_plan(serialize(plan)) == plan);

      const StepSignals signals = random.signals(job, RoundId(random.bits()));
      const auto read = parse_step_signals(serialize(signals), limits);
      REQUIRE_MESSAGE(read.ok(), read.status().text());
      CHECK(same_bits(*read, signals));

      const ControlState state = random.state(job);
      CHECK(same_bits(*parse_control_state(serialize(state)), state));

      Decision decision;
      if (random.chance(50)) decision.plan = plan;
      for (int i = 0; i < 3; ++i) decision.reasons.push_back(random.reason());
      CHECK(*parse_reason(serialize(decision.reasons[0])) == decision.reasons[0]);
      const auto answered = parse_decision(serialize(decision), limits);
      REQUIRE(answered.ok());
      CHECK(answered->plan == decision.plan);
      CHECK(answered->reasons == decision.reasons);
    }
  }

  TEST_CASE("the records of the journal come back whole") {
    RandomValues random(3);
    const JobFacts job = capable_job(3, 4);
    const JournalStart start{job, "guard.mode = on\n", random.state(job), {"guard"}};
    const auto begun = parse_journal_start(serialize(start));
    REQUIRE(begun.ok());
    CHECK(begun->job == job);
    CHECK(begun->config == start.config);
    CHECK(begun->policies == start.policies);
    CHECK(same_bits(begun->state, start.state));

    JournalRound round{random.signals(job, RoundId(7)), {}};
    round.decision.plan = random.plan(job, 2);
    const auto played =
        parse_journal_round(serialize(round.signals, round.decision), limits_of(job));
    REQUIRE(played.ok());
    CHECK(same_bits(played->signals, round.signals));
    CHECK(played->decision.plan == round.decision.plan);
  }

  TEST_CASE("more parts than the job can have are refused before they are built") {
    const JobFacts job = capable_job(2, 3);
    const ParseLimits limits = limits_of(job);
    std::string reports;
    for (int i = 0; i < 3; ++i) reports += std::string("\x1a\x00", 2);
    CHECK(parse_step_signals(reports, limits).status().code() == StatusCode::resource_exhausted);
    std::string rounds;
    for (int i = 0; i < 257; ++i) rounds += std::string("\x12\x00", 2);
    CHECK(parse_control_state(rounds).status().code() == StatusCode::resource_exhausted);
    std::string blocks;
    for (int i = 0; i < 1025; ++i) blocks += std::string("\x2a\x00", 2);
    CHECK(parse_job_facts(blocks).status().code() == StatusCode::resource_exhausted);
    const std::string two_plans("\x0a\x00\x0a\x00", 4);
    CHECK(parse_decision(two_plans, limits).status().code() == StatusCode::resource_exhausted);
  }

  TEST_CASE("values out of range are refused") {
    JobFacts job = capable_job(2, 1);
    job.world_size = 0;
    CHECK(parse_job_facts(serialize(job)).status().code() == StatusCode::data_loss);
    job.world_size = 3;
    job.node_of_rank = {NodeId(0)};
    CHECK(parse_job_facts(serialize(job)).status().code() == StatusCode::data_loss);
    Plan plan = initial_plan(capable_job(2, 1));
    plan.precision[0] = static_cast<Precision>(4);
    CHECK(parse_plan(serialize(plan)).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("100000 mutated messages never crash") {
    RandomValues random(4);
    std::size_t refused = 0;
    for (int round = 0; round < 50; ++round) {
      const JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(4)), 5);
      JournalRound value{random.signals(job, RoundId(1)), {}};
      value.decision.plan = random.plan(job, 3);
      value.decision.reasons.push_back(random.reason());
      const std::string whole = serialize(value.signals, value.decision);
      const std::string start = serialize(JournalStart{job, "x", random.state(job), {"guard"}});
      for (int i = 0; i < 2000; ++i) {
        std::string bytes = i % 4 == 0 ? start : whole;
        if (random.chance(30)) bytes.resize(random.below(bytes.size()));
        for (auto flips = random.below(4); flips > 0 && !bytes.empty(); --flips)
          bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
        const bool ok = i % 4 == 0 ? parse_journal_start(bytes).ok()
                                   : parse_journal_round(bytes, limits_of(job)).ok();
        if (!ok) ++refused;
      }
    }
    CHECK(refused > 20000);
  }
}

}  // namespace
}  // namespace cox::wire
