#include <limits>
#include <string>

#include "metrics/blocks.h"
#include "metrics/topics/numerics.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

// Plays records of three blocks into a view.
struct Player {
  JobFacts job;
  Plan plan;
  Decision decision;
  StepSignals signals;
  std::shared_ptr<const NumericsView> view = std::make_shared<const NumericsView>();

  Player() {
    job.blocks = {"a", "b", "c"};
    plan = initial_plan(job);
    RankSignal report;
    signals.reports = {report};
  }
  const NumericsView& play(std::uint64_t round) {
    signals.round = RoundId(round);
    if (auto next = numerics_after({signals, decision, plan, job, {}, {}}, *view))
      view = std::move(next);
    decision.reasons.clear();
    signals.evidence.clear();
    return *view;
  }
  void publish(std::vector<Precision> formats) {
    plan.id.number += 1;
    plan.activated_round.reset();
    plan.precision = std::move(formats);
  }
  void say(ReasonCode code, Outcome outcome, std::int32_t block, const char* text) {
    Reason reason;
    reason.policy = PolicyKind::precision;
    reason.code = code;
    reason.outcome = outcome;
    reason.block = block;
    reason.text = text;
    decision.reasons.push_back(reason);
  }
};

constexpr auto kFp32 = Precision::fp32;
constexpr auto kBf16 = Precision::bf16;
constexpr auto kFp16 = Precision::fp16;

}  // namespace

TEST_SUITE("numerics view") {
  TEST_CASE("a format is in force from the round in which its plan took effect") {
    Player p;
    p.play(1);
    p.publish({kFp32, kBf16, kFp32});
    p.say(ReasonCode::precision_lowered, Outcome::changed, 1, "b is faster");
    CHECK(p.play(5).blocks[1].format == kFp32);
    CHECK(p.view->blocks[1].planned == kBf16);
    CHECK(p.view->blocks[1].changes == 0);
    p.plan.activated_round = RoundId(7);
    CHECK(p.play(8).blocks[1].format == kBf16);
    CHECK(p.view->blocks[1].changed_round == RoundId(7));
    CHECK(p.view->blocks[1].changes == 1);
    REQUIRE(p.view->blocks[1].why);
    CHECK(p.view->blocks[1].why->text == "b is faster");
    CHECK(p.view->blocks[0].why == nullptr);
    CHECK(p.view->changes[0][1] == 1);
    CHECK((format_blocks(*p.view) == std::array<std::int32_t, 4>{2, 1, 0, 0}));
  }

  TEST_CASE("a plan whose effect no record tells counts when the next one is published") {
    Player p;
    p.play(1);
    p.publish({kBf16, kFp32, kFp32});
    p.play(2);
    p.publish({kFp16, kFp32, kFp32});
    CHECK(p.play(4).blocks[0].format == kBf16);
    CHECK(p.view->blocks[0].changed_round == RoundId(4));
    p.plan.activated_round = RoundId(5);
    CHECK(p.play(5).blocks[0].format == kFp16);
    CHECK(p.view->blocks[0].changes == 2);
    CHECK(p.view->changes[0][1] == 1);
    CHECK(p.view->changes[1][2] == 1);
    CHECK(p.view->changes[0][2] == 0);
  }

  TEST_CASE("the formats that a job starts with are no changes") {
    Player p;
    p.plan.precision = {kBf16, kBf16, kFp32};
    p.say(ReasonCode::precision_start, Outcome::changed, -1, "starts in bf16");
    CHECK(p.play(1).blocks[0].format == kBf16);
    CHECK(p.view->blocks[0].changes == 0);
    CHECK(p.view->changes[0][1] == 0);
    REQUIRE(p.view->blocks[0].why);
    CHECK(p.view->blocks[0].why->text == "starts in bf16");
  }

  TEST_CASE("what did not change has a newest word, but no new why") {
    Player p;
    p.play(1);
    p.say(ReasonCode::precision_no_evidence, Outcome::unchanged, 2, "c stays in fp32");
    p.play(2);
    REQUIRE(p.view->blocks[2].newest);
    CHECK(p.view->blocks[2].newest->text == "c stays in fp32");
    CHECK(p.view->blocks[2].why == nullptr);
    p.say(ReasonCode::precision_no_evidence, Outcome::unchanged, 77, "no such block");
    p.play(3);
    CHECK(p.view->blocks[2].newest->text == "c stays in fp32");
  }

  TEST_CASE("a change of no named block is about those that the plan changes") {
    Player p;
    p.play(1);
    p.publish({kBf16, kBf16, kFp32});
    p.say(ReasonCode::precision_lowered, Outcome::changed, -1, "two blocks go to bf16");
    p.play(2);
    CHECK(p.view->blocks[0].why);
    CHECK(p.view->blocks[1].why);
    CHECK(p.view->blocks[2].why == nullptr);
  }

  TEST_CASE("a reason for several blocks in a row is given to these") {
    Player p;
    p.play(1);
    p.publish({kBf16, kBf16, kFp16});
    p.say(ReasonCode::precision_lowered, Outcome::changed, -1, "blocks a to b go to bf16");
    p.say(ReasonCode::precision_lowered, Outcome::changed, 2, "block c goes to fp16");
    p.play(2);
    REQUIRE(p.view->blocks[1].why);
    CHECK(p.view->blocks[0].why->text == "blocks a to b go to bf16");
    CHECK(p.view->blocks[1].why->text == "blocks a to b go to bf16");
    REQUIRE(p.view->blocks[2].why);
    CHECK(p.view->blocks[2].why->text == "block c goes to fp16");
  }

  TEST_CASE("block names are told apart as whole words") {
    JobFacts job;
    for (int i = 0; i < 12; ++i) job.blocks.push_back("h." + std::to_string(i));
    const struct {
      const char* text;
      int first, last;  // -1 = none
    } cases[] = {{"blocks h.1 to h.11 go to bf16", 1, 11},
                 {"fp8: blocks h.10 to h.11.", 10, 11},
                 {"blocks h.1 to h.1x", -1, -1},
                 {"blocks h.5 to h.2", -1, -1},
                 {"12 blocks move", -1, -1},
                 {"all blocks, blocks h.0 to h.1: x", 0, 1},
                 {"blocks ", -1, -1},
                 {"", -1, -1}};
    for (const auto& c : cases) {
      CAPTURE(c.text);
      const auto range = blocks_named_in(job, c.text);
      CHECK(range.has_value() == (c.first >= 0));
      if (!range || c.first < 0) continue;
      CHECK(range->first == static_cast<std::size_t>(c.first));
      CHECK(range->last == static_cast<std::size_t>(c.last));
    }
  }

  TEST_CASE("rounds without samples keep the newest known values, with their round") {
    Player p;
    p.signals.evidence.resize(3);
    BlockEvidence& seen = p.signals.evidence[1];
    seen.sampled = 100;
    seen.underflow = 5;
    seen.saturated = 2;
    seen.noise_sum = 0.5f;
    seen.noise_count = 4;
    seen.activation = {3.0f, RankId(1)};
    seen.gradient = {0.25f, RankId(0)};
    p.play(4);
    p.signals.evidence.resize(3);
    p.play(5);
    p.play(6);
    const BlockNumerics& block = p.view->blocks[1];
    CHECK(block.underflow.value == 0.05);
    CHECK(block.saturated.value == 0.02);
    CHECK(block.noise.value == 0.125);
    CHECK(block.noise.round == RoundId(4));
    CHECK(block.activation.value == 3);
    CHECK(block.activation.rank == RankId(1));
    CHECK(block.gradient.value == 0.25);
    CHECK_FALSE(p.view->blocks[0].noise.is_known);
  }

  TEST_CASE("a rank whose signal is lost in noise does not hide what the others see") {
    Player p;
    p.signals.evidence.resize(3);
    BlockEvidence& seen = p.signals.evidence[1];
    seen.noise_sum = 1e6f + 0.5f;
    seen.noise_count = 2;
    seen.signal_over_noise = {2.0f, RankId(1)};
    p.play(4);
    CHECK(p.view->blocks[1].noise.value == 0.5);
  }

  TEST_CASE("values that are not finite never become known") {
    Player p;
    p.signals.evidence.resize(3);
    BlockEvidence& seen = p.signals.evidence[0];
    seen.noise_sum = std::numeric_limits<float>::quiet_NaN();
    seen.noise_count = 1;
    seen.gradient = {std::numeric_limits<float>::infinity(), RankId(0)};
    p.signals.reports[0].loss_scale = std::numeric_limits<float>::quiet_NaN();
    p.play(1);
    CHECK_FALSE(p.view->blocks[0].noise.is_known);
    CHECK_FALSE(p.view->blocks[0].gradient.is_known);
    CHECK(p.view->loss_scale == 0);
  }

  TEST_CASE("the loss scale is that of ranks that train; a last report does not end it") {
    Player p;
    p.signals.reports[0].loss_scale = 1024;
    CHECK(p.play(1).loss_scale == 1024);
    p.signals.reports[0].loss_scale = 0;
    p.signals.reports[0].set(SignalFlag::finished);
    CHECK(p.play(2).loss_scale == 1024);
    p.signals.reports.clear();
    CHECK(p.play(3).loss_scale == 1024);
    p.signals.reports = {RankSignal{}};
    CHECK(p.play(4).loss_scale == 0);
  }

  TEST_CASE("overflows are counted by round, block and pass") {
    Player p;
    for (std::uint64_t round = 1; round <= 40; ++round) {
      p.signals.evidence.resize(3);
      p.signals.evidence[1].overflow_backward = 9;
      if (round % 2 == 0) p.signals.evidence[2].overflow_forward = 1;
      p.play(round);
    }
    CHECK(p.view->overflow_rounds == 40);
    CHECK(p.view->blocks[1].overflow_rounds[1] == 40);
    CHECK(p.view->blocks[1].overflow_rounds[0] == 0);
    CHECK(p.view->blocks[2].overflow_rounds[0] == 20);
    CHECK(p.view->overflows.size() == kOverflowsKept);
    REQUIRE(p.view->last_overflow());
    CHECK(p.view->last_overflow()->block == 2);
  }

  TEST_CASE("a plain job has nothing to show, and its records cost no new view") {
    Player p;
    CHECK_FALSE(is_at_work(p.play(1)));
    const auto before = p.view;
    p.play(2);
    CHECK(p.view == before);
    p.signals.reports[0].loss_scale = 8;
    CHECK(is_at_work(p.play(3)));
    CHECK(p.view != before);
    CHECK(before->loss_scale == 0);
  }
}
