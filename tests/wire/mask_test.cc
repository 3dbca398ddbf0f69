#include "coordinator/wire/mask.h"

#include <cstdio>
#include <string>
#include <vector>

#include "coordinator/wire/plan_codec.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

using test::capable_job;
using test::RandomValues;

Plan start_of(const JobFacts& job) {
  Plan plan = initial_plan(job);
  plan.id = {job.incarnation, 0};
  return plan;
}

std::size_t bytes_of(const std::vector<Frame>& frames) {
  std::size_t bytes = 0;
  for (const Frame& frame : frames) bytes += frame.size;
  return bytes;
}

// Returns the plan of a rank that holds `held` after these frames.
Plan received(const JobFacts& job, const Plan& held, const std::vector<Frame>& frames) {
  PlanAssembler assembler(job, held);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const Result<Assembly> step = assembler.feed(frames[i].used());
    REQUIRE_MESSAGE(step.ok(), step.status().text());
    CHECK((*step == Assembly::complete) == (i + 1 == frames.size()));
  }
  return assembler.held();
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  char two[3];
  for (const std::byte b : bytes) {
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(b));
    text += two;
  }
  return text;
}

TEST_SUITE("wire.mask") {
  TEST_CASE("any valid plan comes back as it was, in full and as changes") {
    RandomValues random(11);
    for (int round = 0; round < 1500; ++round) {
      const JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(70)),
                                       random.chance(10) ? 0 : random.below(400));
      const Plan first = random.plan(job, 1 + random.below(1u << 30));
      REQUIRE(validate(first, job).ok());
      const auto full = encode_plan(first, nullptr);
      REQUIRE(full.ok());
      CHECK(received(job, start_of(job), *full) == first);

      const Plan second = random.next_plan(job, first);
      REQUIRE(validate(second, job).ok());
      const auto changes = encode_plan(second, &first);
      REQUIRE(changes.ok());
      CHECK(received(job, first, *changes) == second);
      CHECK(bytes_of(*changes) <= bytes_of(*encode_plan(second, nullptr)));
    }
  }

  TEST_CASE("256 blocks of any precision and action are one frame with a body of 128 bytes") {
    const JobFacts job = capable_job(8, 256);
    RandomValues random(5);
    Plan plan = start_of(job);
    plan.id.number = 1;
    for (auto& precision : plan.precision) precision = static_cast<Precision>(random.below(4));
    for (auto& action : plan.profiles[0]) action = static_cast<MemoryAction>(random.below(4));
    const auto frames = encode_plan(plan, nullptr);
    REQUIRE(frames.ok());
    CHECK(frames->size() == 1);
    CHECK(bytes_of(*frames) == 160);
    CHECK(kHeadHeaderBytes <= 32);
    CHECK(kHeadPayloadBytes <= 128);
    CHECK(received(job, start_of(job), *frames) == plan);
  }

  TEST_CASE("256 blocks of which one has a level of recompute have a body of 256 bytes") {
    const JobFacts job = capable_job(8, 256);
    RandomValues random(16);
    Plan plan = start_of(job);
    plan.id.number = 1;
    for (auto& precision : plan.precision) precision = static_cast<Precision>(random.below(4));
    for (auto& action : plan.profiles[0]) action = static_cast<MemoryAction>(random.below(4));
    plan.profiles[0][77] = recompute_level(3);
    CHECK(full_payload(plan).size() == 256);
    const auto frames = encode_plan(plan, nullptr);
    REQUIRE(frames.ok());
    CHECK(frames->size() == 2);
    CHECK(bytes_of(*frames) == 32 + 24 + 256);
    CHECK(received(job, start_of(job), *frames) == plan);
    Plan without = plan;
    without.id.number = 2;
    without.profiles[0][77] = MemoryAction::keep;
    CHECK(full_payload(without).size() == 128);
    const auto changes = encode_plan(without, &plan);
    REQUIRE(changes.ok());
    CHECK(bytes_of(*changes) <= 40);
    CHECK(received(job, plan, *changes) == without);
  }

  TEST_CASE("a level that only another profile has widens all of them") {
    const JobFacts job = capable_job(2, 3);
    Plan plan = start_of(job);
    plan.id.number = 1;
    CHECK(block_bits(plan) == BlockBits::four);
    plan.profiles.push_back({MemoryAction::keep, recompute_level(7), MemoryAction::tile});
    plan.rank_profile = {ProfileId(0), ProfileId(1)};
    CHECK(block_bits(plan) == BlockBits::eight);
    const auto frames = encode_plan(plan, nullptr);
    REQUIRE(frames.ok());
    CHECK(received(job, start_of(job), *frames) == plan);
  }

  TEST_CASE("256 blocks in 4 profiles of any actions are three frames") {
    const JobFacts job = capable_job(8, 256);
    RandomValues random(15);
    Plan plan = start_of(job);
    plan.id.number = 1;
    plan.profiles.resize(4, plan.profiles[0]);
    for (auto& precision : plan.precision) precision = static_cast<Precision>(random.below(4));
    for (auto& actions : plan.profiles)
      for (auto& action : actions) action = static_cast<MemoryAction>(random.below(4));
    for (std::size_t r = 0; r < 8; ++r)
      plan.rank_profile.emplace_back(static_cast<ProfileId::rep>(r % 4));
    const auto frames = encode_plan(plan, nullptr);
    REQUIRE(frames.ok());
    CHECK(frames->size() == 3);
    CHECK(bytes_of(*frames) <= 416);
    MESSAGE("256 blocks x 4 profiles: " << bytes_of(*frames) << " bytes");
    CHECK(received(job, start_of(job), *frames) == plan);
  }

  TEST_CASE("1024 blocks continue in further frames") {
    const JobFacts job = capable_job(2, kMaxBlocks);
    RandomValues random(6);
    const Plan plan = random.plan(job, 9);
    const auto frames = encode_plan(plan, nullptr);
    REQUIRE(frames.ok());
    CHECK(frames->size() >= 4);
    CHECK(received(job, start_of(job), *frames) == plan);
  }

  TEST_CASE("a change of one block is sent as a delta of a few bytes") {
    const JobFacts job = capable_job(8, 256);
    const Plan base = start_of(job);
    Plan plan = base;
    plan.id.number = 1;
    plan.profiles[0][200] = MemoryAction::recompute;
    const auto frames = encode_plan(plan, &base);
    REQUIRE(frames.ok());
    CHECK(bytes_of(*frames) <= 40);
    CHECK(received(job, base, *frames) == plan);
  }

  TEST_CASE("a change of the batch is sent as a delta, and back to the job's as well") {
    const JobFacts job = capable_job(8, 256);
    const Plan base = start_of(job);
    Plan larger = base;
    larger.id.number = 1;
    larger.step_samples = std::uint64_t{1} << 31;
    const auto grown = encode_plan(larger, &base);
    REQUIRE(grown.ok());
    CHECK(bytes_of(*grown) <= 44);
    CHECK(received(job, base, *grown) == larger);
    Plan back = larger;
    back.id.number = 2;
    back.step_samples = 0;
    const auto shrunk = encode_plan(back, &larger);
    REQUIRE(shrunk.ok());
    CHECK(bytes_of(*shrunk) <= 44);
    CHECK(received(job, larger, *shrunk) == back);
    PlanAssembler elsewhere(job, [&] {
      Plan other = larger;
      other.step_samples = 7;
      return other;
    }());
    CHECK(*elsewhere.feed(shrunk->front().used()) == Assembly::base_unknown);
  }

  TEST_CASE("a base of another incarnation, of other blocks or too far back gives the full plan") {
    const JobFacts job = capable_job(2, 12);
    const Plan base = start_of(job);
    Plan plan = base;
    plan.id.number = 300;
    const auto full = encode_plan(plan, nullptr);
    CHECK(*encode_plan(plan, &base) == *full);
    Plan foreign = plan;
    foreign.id = {job.incarnation + 1, 299};
    CHECK(*encode_plan(plan, &foreign) == *full);
    Plan wider = start_of(capable_job(2, 13));
    wider.id.number = 299;
    CHECK(*encode_plan(plan, &wider) == *full);
  }

  TEST_CASE("the profiles of 16384 ranks cost bytes by their pattern, not by their number") {
    const JobFacts job = capable_job(16384, 48);
    RandomValues random(7);
    Plan plan = start_of(job);
    plan.id.number = 1;
    plan.profiles.clear();
    for (int c = 0; c < 4; ++c) {
      plan.profiles.emplace_back();
      for (int b = 0; b < 48; ++b)
        plan.profiles.back().push_back(static_cast<MemoryAction>(random.below(4)));
    }
    const auto size_with = [&](auto profile_of_rank) {
      plan.rank_profile.clear();
      for (std::uint32_t r = 0; r < 16384; ++r)
        plan.rank_profile.emplace_back(static_cast<ProfileId::rep>(profile_of_rank(r)));
      const auto frames = encode_plan(plan, nullptr);
      REQUIRE(frames.ok());
      CHECK(received(job, start_of(job), *frames) == plan);
      return bytes_of(*frames);
    };
    const auto interleaved = size_with([](std::uint32_t r) { return r % 4; });
    const auto runs = size_with([](std::uint32_t r) { return r / 4096; });
    const auto scattered = size_with([&](std::uint32_t) { return random.below(4); });
    MESSAGE("interleaved " << interleaved << ", runs " << runs << ", scattered " << scattered);
    CHECK(interleaved <= 160);
    CHECK(runs <= 160);
    CHECK(scattered <= 5120);
  }

  TEST_CASE("plans that the mask cannot carry are refused with a reason") {
    const JobFacts job = capable_job(2, 3);
    Plan plan = start_of(job);
    plan.profiles.clear();
    CHECK(encode_plan(plan, nullptr).status().code() == StatusCode::invalid_argument);
    plan = start_of(job);
    plan.profiles[0].pop_back();
    CHECK(encode_plan(plan, nullptr).status().code() == StatusCode::invalid_argument);
    plan = start_of(capable_job(2, kMaxBlocks + 1));
    CHECK(encode_plan(plan, nullptr).status().code() == StatusCode::invalid_argument);
  }

  TEST_CASE("the bytes of version 5 never change") {
    const JobFacts job = capable_job(4, 5);
    Plan base = start_of(job);
    Plan plan = base;
    plan.id.number = 0x0102;
    plan.earliest_round = RoundId(77);
    plan.precision = {Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8,
                      Precision::bf16};
    plan.profiles = {{MemoryAction::keep, MemoryAction::recompute, MemoryAction::offload,
                      MemoryAction::tile, MemoryAction::recompute},
                     {MemoryAction::keep, MemoryAction::keep, MemoryAction::offload,
                      MemoryAction::tile, MemoryAction::tile}};
    plan.rank_profile = {ProfileId(0), ProfileId(1), ProfileId(0), ProfileId(1)};
    plan.shares = {5, 5, 4, 4};
    plan.scaler.growth_interval = 500;
    plan.hold_until = RoundId(1000);
    plan.rollback = {1, RoundId(60)};
    plan.step_samples = 200;
    const auto full = encode_plan(plan, nullptr);
    REQUIRE(full.ok());
    REQUIRE(full->size() == 1);
    CHECK(hex(full->front().used()) ==
          "05015d006d93a243030000000500000002010000000000004d00000000000000"
          "50fa0502040200e0030305040200010a04050402040103061800008047000000"
          "400000003ff4030000803f0000804b01010702e8070802013c0902c801");

    base = plan;
    base.id.number = 0x0101;
    base.precision[2] = Precision::fp32;
    base.shares.clear();
    base.step_samples = 0;
    const auto changes = encode_plan(plan, &base);
    REQUIRE(changes.ok());
    CHECK(hex(changes->front().used()) ==
          "050232014294c185030000000500000002010000000000004d00000000000000"
          "0b43a15b01012a040504020401030902c801");

    plan.profiles[0][4] = recompute_level(1);
    plan.profiles[1][1] = recompute_level(7);
    const auto levels = encode_plan(plan, nullptr);
    REQUIRE(levels.ok());
    CHECK(hex(levels->front().used()) ==
          "05016000e5c45983030000000580000002010000000000004d00000000000000"
          "00050a0f1102050200a032030305040200010a04050402040103061800008047"
          "000000400000003ff4030000803f0000804b01010702e8070802013c0902c801");
  }
}

}  // namespace
}  // namespace cox::wire
