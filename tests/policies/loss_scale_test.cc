#include "coordinator/policies/loss_scale.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/decide.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

BlockEvidence calm_evidence() {
  BlockEvidence evidence;
  evidence.sampled = 1000;
  evidence.gradient = {0.01f, RankId(0)};
  return evidence;
}

// A job of three blocks, the middle one in fp16; plans are in force in the next round.
class ScaleGame {
 public:
  explicit ScaleGame(const std::string& settings = {}) {
    job.incarnation = 1;
    job.world_size = 3;
    job.blocks = {"wte", "h.0", "head"};
    job.capabilities.precisions = 0xF;
    REQUIRE(apply_text(config, settings, "test").ok());
    Begun begun = begin_job(job, config, policies_, initial_state(job));
    state = std::move(begun.state);
    state.plan.precision = {Precision::bf16, Precision::fp16, Precision::fp32};
    evidence.assign(3, calm_evidence());
  }

  void play(int rounds = 1) {
    for (int i = 0; i < rounds; ++i) play_once();
  }

  int count(ReasonCode code) const {
    int found = 0;
    for (const Reason& reason : reasons) found += reason.code == code ? 1 : 0;
    return found;
  }
  Reason last(ReasonCode code) const {
    for (auto at = reasons.rbegin(); at != reasons.rend(); ++at) {
      if (at->code == code) return *at;
    }
    return {};
  }
  void overflow(std::size_t block, std::int32_t rank) {
    evidence[block].overflow_backward = 3;
    evidence[block].rank_of_overflow = RankId(rank);
    bad_rank = rank;
  }
  void calm() {
    evidence.assign(3, calm_evidence());
    bad_rank = -1;
  }
  const ScalerRules& rules() const { return state.plan.scaler; }

  JobFacts job;
  Config config;
  ControlState state;
  std::vector<BlockEvidence> evidence;
  std::vector<Reason> reasons;
  std::int32_t bad_rank = -1;
  float scale = 65536;
  std::uint64_t round = 0;

 private:
  void play_once() {
    StepSignals signals;
    signals.round = RoundId(++round);
    for (std::int32_t r = 0; r < 3; ++r) {
      RankSignal report;
      report.rank = RankId(r);
      report.round = signals.round;
      report.rounds = 1;
      report.loss = 2;
      report.weight = 1;
      report.plan_applied = state.plan.id.number;
      report.loss_scale = scale;
      if (r == bad_rank) report.nonfinite_values = 3;
      signals.reports.push_back(report);
    }
    signals.evidence = evidence;
    Decided decided = decide(job, config, policies_, std::move(state), signals);
    state = std::move(decided.state);
    for (Reason& reason : decided.decision.reasons) reasons.push_back(std::move(reason));
  }

  PolicySet policies_{std::make_shared<LossScalePolicy>()};
};

TEST_SUITE("policies.loss_scale") {
  TEST_CASE("an overflow is told once a streak, by block, direction and rank") {
    for (std::size_t block = 0; block < 3; ++block) {
      ScaleGame game;
      game.overflow(block, 2);
      game.play(5);
      CHECK(game.count(ReasonCode::overflow_named) == 1);
      const Reason told = game.last(ReasonCode::overflow_named);
      CHECK(told.block == static_cast<std::int32_t>(block));
      CHECK(told.rank == RankId(2));
      CHECK(told.text.find("block " + game.job.blocks[block] +
                           " overflowed in its backward pass on rank 2") == 0);
      game.calm();
      game.play(10);
      game.overflow(block, 1);
      game.play();
      CHECK(game.count(ReasonCode::overflow_named) == 1);
      game.calm();
      game.play(40);
      game.overflow(block, 1);
      game.play();
      CHECK(game.count(ReasonCode::overflow_named) == 2);
      CHECK(game.count(ReasonCode::overflow_outside) == 0);
    }
  }

  TEST_CASE("a forward overflow says so, with the format and the scale") {
    ScaleGame game;
    game.evidence[1].overflow_forward = 7;
    game.evidence[1].rank_of_overflow = RankId(0);
    game.play();
    CHECK(game.last(ReasonCode::overflow_named).text ==
          "block h.0 overflowed in its forward pass on rank 0: 7 values not finite, in fp16, loss "
          "scale 65536");
  }

  TEST_CASE("what arises outside of all blocks is told as such") {
    ScaleGame game;
    game.bad_rank = 1;
    game.play(3);
    CHECK(game.count(ReasonCode::overflow_outside) == 1);
    CHECK(game.last(ReasonCode::overflow_outside).rank == RankId(1));
    CHECK(game.count(ReasonCode::overflow_named) == 0);
  }

  TEST_CASE(
      "too much underflow below a larger possible scale makes growth fast, until it is over") {
    ScaleGame game;
    game.evidence[1].underflow = 300;
    game.play(4);
    CHECK(game.rules().growth_interval == 31);
    CHECK(game.count(ReasonCode::scaler_underflow) == 1);
    game.evidence[1].underflow = 40;
    game.play(5);
    CHECK(game.rules().growth_interval == 31);
    game.evidence[1].underflow = 0;
    game.play(4);
    CHECK(game.rules() == game.config.loss_scale.rules);
  }

  TEST_CASE("underflow changes nothing where the largest gradients leave no room, or in bf16") {
    ScaleGame game;
    game.evidence[1].underflow = 900;
    SUBCASE("no room") {
      game.evidence[1].gradient.value = 0.4f;
    }
    SUBCASE("no block in fp16") {
      game.state.plan.precision[1] = Precision::bf16;
    }
    SUBCASE("no scaler at work") {
      game.scale = 0;
    }
    SUBCASE("the policy only observes") {
      REQUIRE(set_option(game.config, "loss_scale.mode", "observe").ok());
    }
    game.play(20);
    CHECK(game.rules() == game.config.loss_scale.rules);
  }

  TEST_CASE("an overflow ends fast growth, and the next time it waits longer") {
    ScaleGame game;
    game.evidence[1].underflow = 300;
    game.play(4);
    REQUIRE(game.rules().growth_interval == 31);
    game.overflow(1, 0);
    game.play();
    game.calm();
    game.evidence[1].underflow = 300;
    game.play(2);
    CHECK(game.rules().growth_interval == 2000);
    game.play(4);
    CHECK(game.rules().growth_interval == 31);
  }

  TEST_CASE("overflows that come back make it remember longer, and that passes") {
    ScaleGame game("loss_scale.growth_interval = 100\n");
    for (int i = 0; i < 3; ++i) {
      game.overflow(1, 0);
      game.play();
      game.calm();
      game.play(50);
    }
    CHECK(game.rules().growth_interval == 400);
    CHECK(game.rules().max_scale < game.config.loss_scale.rules.max_scale);
    CHECK(game.rules().max_scale * 0.01f >= 16000);
    game.play(10000);
    CHECK(game.rules() == game.config.loss_scale.rules);
  }

  TEST_CASE("a cap that follows the gradients is a valid plan, and no plan for every wiggle") {
    ScaleGame game("loss_scale.growth_interval = 100\n");
    const auto gradients = [&game](float largest, int rounds) {
      game.calm();
      game.evidence[1].gradient = {largest, RankId(0)};
      game.play(rounds);
    };
    const auto incident = [&](float largest) {
      game.overflow(1, 0);
      game.play();
      gradients(largest, 50);
    };
    incident(8);
    incident(8);
    CHECK(game.rules().max_scale == 2048);
    gradients(7, 50);
    incident(7);
    CHECK(game.count(ReasonCode::invalid_proposal) == 0);
    CHECK(game.rules().growth_interval == 400);
    gradients(1.9f, 300);
    CHECK(game.rules().max_scale == 16384);
    const std::uint64_t plan = game.state.plan.id.number;
    for (int i = 0; i < 5; ++i) {
      gradients(2.1f, 20);
      gradients(1.9f, 20);
    }
    CHECK(game.state.plan.id.number == plan);
  }

  TEST_CASE("at the smallest scale it names the block once and proposes no more") {
    ScaleGame game;
    game.scale = 1;
    game.overflow(1, 2);
    game.play(500);
    CHECK(game.count(ReasonCode::scaler_floor) == 1);
    const Reason told = game.last(ReasonCode::scaler_floor);
    CHECK(told.block == 1);
    CHECK(told.rank == RankId(2));
    CHECK(told.text.find("block h.0") != std::string::npos);
    CHECK(game.count(ReasonCode::scaler_rules) == 0);
  }

  TEST_CASE("a job starts with the rules of its settings") {
    const ScaleGame game("loss_scale.initial = 256\nloss_scale.hysteresis = 2\n");
    CHECK(game.rules().initial_scale == 256);
    CHECK(game.rules().hysteresis == 2);
  }

  TEST_CASE("evidence of more blocks than the job has is not read") {
    ScaleGame game;
    game.evidence.assign(300, calm_evidence());
    game.overflow(299, 1);
    game.scale = game.rules().min_scale;
    game.play(5);
    CHECK(game.count(ReasonCode::overflow_named) == 0);
    CHECK(game.count(ReasonCode::overflow_outside) == 1);
    CHECK(game.last(ReasonCode::scaler_floor).block == -1);
  }

  TEST_CASE("states that are none start anew") {
    const LossScalePolicy policy;
    ScaleGame game;
    const StepSignals signals;
    const StepSummary summary;
    for (const double odd : {std::nan(""), -1.0, 1e300}) {
      const auto state = PolicyState::of(NumbersState{1, std::vector<double>(13, odd)});
      const PolicyOutput output = policy.propose(
          {game.job, game.config, game.state.plan, signals, summary, game.state.history}, state);
      CHECK(output.state == PolicyState::of(NumbersState{1, std::vector<double>(13, 0)}));
    }
  }
}

}  // namespace
}  // namespace cox
