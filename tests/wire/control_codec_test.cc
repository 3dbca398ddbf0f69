#include "coordinator/wire/control_codec.h"

#include <string>

#include "coordinator/wire/plan_codec.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

using test::capable_job;
using test::RandomValues;
using test::same_bits;

JournalStart start_of(const JobFacts& job) {
  return {job, "", initial_state(capable_job(1, 1)), {}};
}

// Returns the facts after writing and reading a journal start.
Result<JobFacts> again(const JobFacts& job) {
  const Result<JournalStart> read = parse_journal_start(serialize(start_of(job)));
  if (!read.ok()) return read.status();
  return read->job;
}

StatusCode code_of(const JobFacts& job) {
  return again(job).status().code();
}

TEST_SUITE("wire.control") {
  TEST_CASE("every value comes back bit for bit") {
    RandomValues random(2);
    for (int round = 0; round < 300; ++round) {
      JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(9)), random.below(20));
      job.name = "caf\xe9";
      if (random.chance(50)) job.micro_batch = 1 + random.below(std::uint64_t{1} << 31);
      job.capabilities.accumulation = random.chance(50);
      if (random.chance(50))
        job.node_of_rank.assign(static_cast<std::size_t>(job.world_size), NodeId(2));
      if (random.chance(70)) job.memory = random.memory(job);
      if (random.chance(70)) job.precision = random.precision(job);
      CHECK(*again(job) == job);

      Plan plan = random.plan(job, random.bits());
      if (random.chance(5)) plan.step_samples = random.bits();
      if (random.chance(50)) plan.activated_round = RoundId(0);

      ControlState state = random.state(job);
      state.plan = plan;
      CHECK(same_bits(*parse_control_state(serialize(state)), state));

      const StepSignals signals = random.signals(job, RoundId(random.bits()));
      Decision decision;
      if (random.chance(50)) decision.plan = plan;
      for (int i = 0; i < 3; ++i) decision.reasons.push_back(random.reason());
      const auto read = parse_journal_round(serialize(signals, decision), size_of(job));
      REQUIRE_MESSAGE(read.ok(), read.status().text());
      CHECK(same_bits(read->signals, signals));
      CHECK(read->decision.plan == decision.plan);
      CHECK(read->decision.reasons == decision.reasons);
    }
  }

  TEST_CASE("the records of the journal come back whole") {
    RandomValues random(3);
    JobFacts job = capable_job(3, 4);
    job.memory = random.memory(job);
    job.precision = random.precision(job);
    JournalStart start{job, "guard.mode = on\n", random.state(job), {"guard"}};
    CHECK_FALSE(parse_journal_start(serialize(start))->first.has_value());
    start.first.emplace();
    start.first->plan = random.plan(job, 1);
    start.first->reasons.push_back(random.reason());
    const auto begun = parse_journal_start(serialize(start));
    REQUIRE(begun.ok());
    CHECK(begun->job == job);
    CHECK(begun->config == start.config);
    CHECK(begun->policies == start.policies);
    CHECK(same_bits(begun->state, start.state));
    REQUIRE(begun->first.has_value());
    CHECK(begun->first->plan == start.first->plan);
    CHECK(begun->first->reasons == start.first->reasons);

    JournalRound round{random.signals(job, RoundId(7)), {}};
    round.decision.plan = random.plan(job, 2);
    const auto played = parse_journal_round(serialize(round.signals, round.decision), size_of(job));
    REQUIRE(played.ok());
    CHECK(same_bits(played->signals, round.signals));
    CHECK(played->decision.plan == round.decision.plan);
  }

  TEST_CASE("more parts than the job can have are refused") {
    RandomValues random(6);
    const JobFacts job = capable_job(2, 3);
    const auto code_of_round = [&](const StepSignals& signals, const Decision& decision) {
      return parse_journal_round(serialize(signals, decision), size_of(job)).status().code();
    };
    const StepSignals sound = random.signals(job, RoundId(1));
    CHECK(code_of_round(sound, {}) == StatusCode::ok);
    StepSignals signals = sound;
    SUBCASE("reports") {
      signals.reports.assign(3, RankSignal{});
    }
    SUBCASE("faults") {
      signals.faults.assign(size_of(job).faults() + 1, FaultyReport{});
    }
    SUBCASE("evidence") {
      signals.evidence.resize(4);
    }
    Decision decision;
    SUBCASE("reasons") {
      decision.reasons.resize(size_of(job).reasons() + 1);
    }
    CHECK(code_of_round(signals, decision) == StatusCode::data_loss);
  }

  TEST_CASE("a message that is there twice is merged, and has no more parts than one") {
    const JobFacts job = capable_job(2, 3);
    StepSignals signals;
    signals.evidence.resize(2);
    Decision decision;
    decision.reasons.resize(size_of(job).reasons() / 2 + 1);
    const std::string half = serialize(signals, {});
    CHECK(parse_journal_round(half, size_of(job)).ok());
    CHECK(parse_journal_round(half + half, size_of(job)).status().code() == StatusCode::data_loss);
    const auto merged = parse_journal_round(half + half, {.ranks = 2, .blocks = 4});
    REQUIRE(merged.ok());
    CHECK(merged->signals.evidence.size() == 4);
    const std::string reasons = serialize({}, decision);
    CHECK(parse_journal_round(reasons, size_of(job)).ok());
    CHECK_FALSE(parse_journal_round(reasons + reasons, size_of(job)).ok());
  }

  TEST_CASE("more parts than any job can have are refused") {
    RandomValues random(7);
    JobFacts job = capable_job(2, 3);
    job.memory = random.memory(job);
    CHECK(code_of(job) == StatusCode::ok);
    SUBCASE("blocks") {
      job = capable_job(2, 1025);
    }
    SUBCASE("points") {
      job.memory.models[0].front.resize(257);
    }
    SUBCASE("models") {
      job.memory.models.resize(65, job.memory.models[0]);
    }
    CHECK(code_of(job) == StatusCode::data_loss);
  }

  TEST_CASE("a longer history than is kept is refused") {
    const std::string without = serialize(initial_state(capable_job(1, 1)));
    const auto with_rounds = [&](std::size_t rounds) {
      std::string bytes = without;
      for (std::size_t i = 0; i < rounds; ++i) bytes += std::string("\x12\x02\x08\x01", 4);
      return bytes;  // ControlState.history, of RoundFacts.round 1
    };
    CHECK(parse_control_state(with_rounds(256)).ok());
    CHECK(parse_control_state(with_rounds(257)).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("values out of range are refused") {
    JobFacts job = capable_job(2, 1);
    job.world_size = 0;
    CHECK(code_of(job) == StatusCode::data_loss);
    job.world_size = 2;
    job.micro_batch = std::uint64_t{1} << 31;
    CHECK(code_of(job) == StatusCode::ok);
    ++job.micro_batch;
    CHECK(code_of(job) == StatusCode::data_loss);
    job.micro_batch = 0;
    job.global_batch = (std::uint64_t{1} << 31) + 1;
    CHECK(code_of(job) == StatusCode::data_loss);
    job.global_batch = 0;
    job.world_size = 3;
    job.node_of_rank = {NodeId(0)};
    CHECK(code_of(job) == StatusCode::data_loss);
  }

  TEST_CASE("a few bytes cannot stand for a million ranks") {
    JobFacts job = capable_job(1 << 16, 1);
    CHECK(code_of(job) == StatusCode::ok);
    ++job.world_size;
    CHECK(code_of(job) == StatusCode::data_loss);
    job.node_of_rank.assign(job.ranks(), NodeId(0));
    CHECK(code_of(job) == StatusCode::ok);
  }

  TEST_CASE("settings in a journal are no more than a file may have") {
    JournalStart start = start_of(capable_job(1, 1));
    start.config.assign(1 << 20, '\n');
    CHECK(parse_journal_start(serialize(start)).ok());
    start.config += '\n';
    CHECK(parse_journal_start(serialize(start)).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("states of policies stand in the order of their names, each once") {
    ControlState state = initial_state(capable_job(1, 1));
    for (const char* name : {"a", "b"}) state.policies.push_back({name, {}});
    CHECK(parse_control_state(serialize(state)).ok());
    state.policies[0].policy = "b";
    CHECK(parse_control_state(serialize(state)).status().code() == StatusCode::data_loss);
    state.policies[0].policy = "c";
    CHECK(parse_control_state(serialize(state)).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("memory facts that do not fit the job, or are no fronts, are refused") {
    RandomValues random(5);
    JobFacts job = capable_job(2, 6);
    job.memory = random.memory(job);
    REQUIRE(code_of(job) == StatusCode::ok);
    MemoryFacts& facts = job.memory;
    facts.models.resize(1);
    facts.model_of_rank.clear();
    MemoryFront& front = facts.models[0].front;
    SUBCASE("another model") {
      facts.model_of_rank = {0, 1};
    }
    SUBCASE("another world") {
      facts.limit_bytes = {1, 2, 3};
    }
    SUBCASE("too many actions") {
      front[0].actions.resize(9);
    }
    SUBCASE("too few actions") {
      front[0].actions.resize(4);
    }
    SUBCASE("a point twice") {
      front.push_back(front.back());
    }
    SUBCASE("bytes below zero") {
      front[0].peak_bytes = -1;
    }
    SUBCASE("no point at all") {
      front.clear();
    }
    SUBCASE("an action that is none") {
      front[0].actions[3] = static_cast<MemoryAction>(11);
    }
    SUBCASE("a capability that is none") {
      job.capabilities.actions = kEveryAction + 1;
    }
    CHECK(code_of(job) == StatusCode::data_loss);
  }

  TEST_CASE("precision facts that do not fit the job are refused") {
    JobFacts job = capable_job(2, 3);
    job.precision.blocks.assign(3, {{400, 300, 300, 200}});
    job.precision.emulated = only(Precision::fp8);
    REQUIRE(*again(job) == job);
    SUBCASE("another number of blocks") {
      job.precision.blocks.resize(2);
    }
    SUBCASE("a time below zero") {
      job.precision.blocks[1].step_us[2] = -1;
    }
    SUBCASE("a time without end") {
      job.precision.blocks[2].step_us[3] = std::int64_t{1} << 51;
    }
    SUBCASE("a format that is none") {
      job.precision.emulated = 16;
    }
    CHECK(code_of(job) == StatusCode::data_loss);
  }

  TEST_CASE("the largest facts of memory stay small") {
    const struct {
      MemoryAction action;
      std::size_t mib;
    } kCases[] = {{MemoryAction::tile, 6}, {recompute_level(7), 10}};
    for (const auto& c : kCases) {
      JobFacts job = capable_job(64, 1024);
      job.memory.models.resize(kMaxMemoryModels);
      for (MemoryModel& model : job.memory.models) {
        model.kept_bytes.assign(1024, std::int64_t{1} << 40);
        for (std::int64_t p = 0; p < static_cast<std::int64_t>(kMaxFrontPoints); ++p)
          model.front.push_back({(std::int64_t{1} << 40) + p, (1 << 30) - p,
                                 std::vector<MemoryAction>(1024, c.action)});
      }
      CHECK(serialize(start_of(job)).size() < c.mib << 20);
      CHECK(*again(job) == job);
    }
  }

  TEST_CASE("100000 mutated messages never crash") {
    RandomValues random(4);
    std::size_t refused = 0;
    for (int round = 0; round < 50; ++round) {
      JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(4)), 5);
      if (random.chance(50)) job.memory = random.memory(job);
      if (random.chance(50)) job.precision = random.precision(job);
      JournalRound value{random.signals(job, RoundId(1)), {}};
      value.decision.plan = random.plan(job, 3);
      value.decision.reasons.push_back(random.reason());
      const std::string whole = serialize(value.signals, value.decision);
      const std::string start =
          serialize(JournalStart{job, "x", random.state(job), {"guard"}, value.decision});
      for (int i = 0; i < 2000; ++i) {
        std::string bytes = i % 4 == 0 ? start : whole;
        if (random.chance(30)) bytes.resize(random.below(bytes.size()));
        for (auto flips = random.below(4); flips > 0 && !bytes.empty(); --flips)
          bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
        const bool ok = i % 4 == 0 ? parse_journal_start(bytes).ok()
                                   : parse_journal_round(bytes, size_of(job)).ok();
        if (!ok) ++refused;
      }
    }
    CHECK(refused > 20000);
  }
}

}  // namespace
}  // namespace cox::wire
