#include "coordinator/policies/loss_scale/loss_scale.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/decide/decide.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

BlockEvidence calm_evidence() {
  BlockEvidence evidence;
  evidence.sampled = 1000;
  evidence.gradient = {0.01f, RankId(0)};
  return evidence;
}

// A job of three blocks, the middle one in fp16. Plans are in force in the next round.
class SimulatedScaleJob {
 public:
  explicit SimulatedScaleJob(const std::string& settings = {}) {
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
      SimulatedScaleJob run;
      run.overflow(block, 2);
      run.play(5);
      CHECK(run.count(ReasonCode::overflow_named) == 1);
      const Reason told = run.last(ReasonCode::overflow_named);
      CHECK(told.block == static_cast<std::int32_t>(block));
      CHECK(told.rank == RankId(2));
      CHECK(told.text.find("block " + run.job.blocks[block] +
                           " overflowed in its backward pass on rank 2") == 0);
      run.calm();
      run.play(10);
      run.overflow(block, 1);
      run.play();
      CHECK(run.count(ReasonCode::overflow_named) == 1);
      run.calm();
      run.play(40);
      run.overflow(block, 1);
      run.play();
      CHECK(run.count(ReasonCode::overflow_named) == 2);
      CHECK(run.count(ReasonCode::overflow_outside) == 0);
    }
  }

  TEST_CASE("a forward overflow says so, with the format and the scale") {
    SimulatedScaleJob run;
    run.evidence[1].overflow_forward = 7;
    run.evidence[1].rank_of_overflow = RankId(0);
    run.play();
    CHECK(run.last(ReasonCode::overflow_named).text ==
          "block h.0 overflowed in its forward pass on rank 0: 7 values not finite, in fp16, loss "
          "scale 65536");
  }

  TEST_CASE("what arises outside of all blocks is told as such") {
    SimulatedScaleJob run;
    run.bad_rank = 1;
    run.play(3);
    CHECK(run.count(ReasonCode::overflow_outside) == 1);
    CHECK(run.last(ReasonCode::overflow_outside).rank == RankId(1));
    CHECK(run.count(ReasonCode::overflow_named) == 0);
  }

  TEST_CASE(
      "too much underflow below a larger possible scale makes growth fast, until it is over") {
    SimulatedScaleJob run;
    run.evidence[1].underflow = 300;
    run.play(4);
    CHECK(run.rules().growth_interval == 31);
    CHECK(run.count(ReasonCode::scaler_underflow) == 1);
    run.evidence[1].underflow = 40;
    run.play(5);
    CHECK(run.rules().growth_interval == 31);
    run.evidence[1].underflow = 0;
    run.play(4);
    CHECK(run.rules() == run.config.loss_scale.rules);
  }

  TEST_CASE("underflow changes nothing where the largest gradients leave no room, or in bf16") {
    SimulatedScaleJob run;
    run.evidence[1].underflow = 900;
    SUBCASE("no room") {
      run.evidence[1].gradient.value = 0.4f;
    }
    SUBCASE("no block in fp16") {
      run.state.plan.precision[1] = Precision::bf16;
    }
    SUBCASE("no scaler at work") {
      run.scale = 0;
    }
    SUBCASE("the policy only observes") {
      REQUIRE(set_option(run.config, "loss_scale.mode", "observe").ok());
    }
    run.play(20);
    CHECK(run.rules() == run.config.loss_scale.rules);
  }

  TEST_CASE("an overflow ends fast growth, and the next time it waits longer") {
    SimulatedScaleJob run;
    run.evidence[1].underflow = 300;
    run.play(4);
    REQUIRE(run.rules().growth_interval == 31);
    run.overflow(1, 0);
    run.play();
    run.calm();
    run.evidence[1].underflow = 300;
    run.play(2);
    CHECK(run.rules().growth_interval == 2000);
    run.play(4);
    CHECK(run.rules().growth_interval == 31);
  }

  TEST_CASE("overflows that come back make it remember longer, and that passes") {
    SimulatedScaleJob run("loss_scale.growth_interval = 100\n");
    for (int i = 0; i < 3; ++i) {
      run.overflow(1, 0);
      run.play();
      run.calm();
      run.play(50);
    }
    CHECK(run.rules().growth_interval == 400);
    CHECK(run.rules().max_scale < run.config.loss_scale.rules.max_scale);
    CHECK(run.rules().max_scale * 0.01f >= 16000);
    run.play(10000);
    CHECK(run.rules() == run.config.loss_scale.rules);
  }

  TEST_CASE("a cap that follows the gradients is a valid plan, and no plan for every wiggle") {
    SimulatedScaleJob run("loss_scale.growth_interval = 100\n");
    const auto gradients = [&run](float largest, int rounds) {
      run.calm();
      run.evidence[1].gradient = {largest, RankId(0)};
      run.play(rounds);
    };
    const auto incident = [&](float largest) {
      run.overflow(1, 0);
      run.play();
      gradients(largest, 50);
    };
    incident(8);
    incident(8);
    CHECK(run.rules().max_scale == 2048);
    gradients(7, 50);
    incident(7);
    CHECK(run.count(ReasonCode::invalid_proposal) == 0);
    CHECK(run.rules().growth_interval == 400);
    gradients(1.9f, 300);
    CHECK(run.rules().max_scale == 16384);
    const std::uint64_t plan = run.state.plan.id.number;
    for (int i = 0; i < 5; ++i) {
      gradients(2.1f, 20);
      gradients(1.9f, 20);
    }
    CHECK(run.state.plan.id.number == plan);
  }

  TEST_CASE("at the smallest scale it names the block once and proposes no more") {
    SimulatedScaleJob run;
    run.scale = 1;
    run.overflow(1, 2);
    run.play(500);
    CHECK(run.count(ReasonCode::scaler_floor) == 1);
    const Reason told = run.last(ReasonCode::scaler_floor);
    CHECK(told.block == 1);
    CHECK(told.rank == RankId(2));
    CHECK(told.text.find("block h.0") != std::string::npos);
    CHECK(run.count(ReasonCode::scaler_rules) == 0);
  }

  TEST_CASE("a job starts with the rules of its settings") {
    const SimulatedScaleJob run("loss_scale.initial = 256\nloss_scale.hysteresis = 2\n");
    CHECK(run.rules().initial_scale == 256);
    CHECK(run.rules().hysteresis == 2);
  }

  TEST_CASE("evidence of more blocks than the job has is not read") {
    SimulatedScaleJob run;
    run.evidence.assign(300, calm_evidence());
    run.overflow(299, 1);
    run.scale = run.rules().min_scale;
    run.play(5);
    CHECK(run.count(ReasonCode::overflow_named) == 0);
    CHECK(run.count(ReasonCode::overflow_outside) == 1);
    CHECK(run.last(ReasonCode::scaler_floor).block == -1);
  }

  TEST_CASE("states that are none start anew") {
    const LossScalePolicy policy;
    SimulatedScaleJob run;
    const StepSignals signals;
    StepSummary summary;
    summary.reporting = 1;
    const auto next = [&](PolicyState state) {
      return policy
          .propose(
              {run.job, run.config, run.state.plan, signals, summary, {}, run.state.history, {}},
              std::move(state))
          .state;
    };
    const PolicyState fresh = next({});
    CHECK_FALSE(fresh.is_fresh());
    for (const char* odd : {"", "\x02", "\x01\x00", "\xff\xff\xff\xff\xff", "garbage"}) {
      CHECK(next(PolicyState::from_bytes(odd)) == fresh);
    }
    const std::string other_blocks = next({}).bytes();
    run.job.blocks.pop_back();
    run.state.plan.precision.pop_back();
    CHECK(next(PolicyState::from_bytes(other_blocks)) == next({}));
  }
}

}  // namespace
}  // namespace cox
