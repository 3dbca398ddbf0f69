#include "coordinator/core/plan.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::BlockId;
using cox::ClassId;
using cox::MemoryAction;
using cox::Plan;
using cox::Precision;
using cox::RankId;

cox::JobFacts capable_job() {
  cox::JobFacts job;
  job.incarnation = 3;
  job.world_size = 4;
  job.blocks = {"a", "b", "c"};
  job.capabilities = {0b0111, 0b0011, true, true, true, true};
  return job;
}

// Ranks 0 and 3 recompute block 1.
Plan classed_plan() {
  Plan plan = cox::initial_plan(capable_job());
  plan.classes.push_back({MemoryAction::keep, MemoryAction::recompute, MemoryAction::keep});
  plan.rank_class = {ClassId(1), ClassId(0), ClassId(0), ClassId(1)};
  return plan;
}

struct Damage {
  std::string says;
  std::function<void(Plan&)> inflict;
};

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("the first plan is number 0, fp32, keep and even, and valid for any job") {
    for (const cox::JobFacts& job : {cox::JobFacts{}, capable_job()}) {
      const Plan plan = cox::initial_plan(job);
      CHECK(cox::validate(plan, job).ok());
      CHECK(plan.id == cox::PlanId{job.incarnation, 0});
      CHECK(plan.precision == std::vector<Precision>(job.blocks.size(), Precision::fp32));
      CHECK(plan.shares.empty());
    }
  }

  TEST_CASE("a rank's action is that of its class") {
    const Plan plan = classed_plan();
    CHECK(cox::action_of(plan, RankId(0), BlockId(1)) == MemoryAction::recompute);
    CHECK(cox::action_of(plan, RankId(1), BlockId(1)) == MemoryAction::keep);
    CHECK(cox::action_of(cox::initial_plan(capable_job()), RankId(3), BlockId(2)) ==
          MemoryAction::keep);
  }

  TEST_CASE("a plan that does not fit its job is refused with the field that is wrong") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Damage damages[] = {
        {"incarnation", [](Plan& p) { p.id.incarnation = 2; }},
        {"precision", [](Plan& p) { p.precision.pop_back(); }},
        {"precision", [](Plan& p) { p.precision[1] = static_cast<Precision>(9); }},
        {"fp8", [](Plan& p) { p.precision[1] = Precision::fp8; }},
        {"classes", [](Plan& p) { p.classes.clear(); }},
        {"1024 classes", [](Plan& p) { p.classes.resize(1025, p.classes[0]); }},
        {"class 1", [](Plan& p) { p.classes[1].push_back(MemoryAction::keep); }},
        {"offload", [](Plan& p) { p.classes[0][2] = MemoryAction::offload; }},
        {"rank_class", [](Plan& p) { p.rank_class.push_back(ClassId(0)); }},
        {"rank 2", [](Plan& p) { p.rank_class[2] = ClassId(2); }},
        {"shares",
         [](Plan& p) {
           p.shares = {1, 2, 3};
         }},
        {"shares",
         [](Plan& p) {
           p.shares = {0, 0, 0, 0};
         }},
        {"rank 1",
         [](Plan& p) {
           p.shares = {1, 1u << 21, 1, 1};
         }},
        {"step_samples", [](Plan& p) { p.step_samples = (1ull << 31) + 1; }},
        {"step_samples", [](Plan& p) { p.step_samples = ~0ull; }},
        {"cadence", [](Plan& p) { p.cadence_steps = 0; }},
        {"cadence", [](Plan& p) { p.cadence_steps = (1u << 20) + 1; }},
        {"min_scale", [](Plan& p) { p.scaler.min_scale = -1; }},
        {"max_scale", [](Plan& p) { p.scaler.max_scale = 0.5f; }},
        {"initial_scale", [nan](Plan& p) { p.scaler.initial_scale = nan; }},
        {"growth_factor", [](Plan& p) { p.scaler.growth_factor = 0.9f; }},
        {"backoff_factor", [](Plan& p) { p.scaler.backoff_factor = 1; }},
        {"growth_interval", [](Plan& p) { p.scaler.growth_interval = 0; }},
    };
    REQUIRE(cox::validate(classed_plan(), capable_job()).ok());
    for (const Damage& damage : damages) {
      Plan plan = classed_plan();
      damage.inflict(plan);
      const cox::Status status = cox::validate(plan, capable_job());
      CAPTURE(damage.says);
      CAPTURE(status.message());
      CHECK(status.code() == cox::StatusCode::invalid_argument);
      CHECK(status.message().find(damage.says) != std::string::npos);
    }
  }

  TEST_CASE("a job that cannot apply shares, a cadence or other batches refuses plans with them") {
    cox::JobFacts job = capable_job();
    job.capabilities.shares = job.capabilities.cadence = job.capabilities.accumulation = false;
    Plan plan = cox::initial_plan(job);
    plan.shares = {1, 1, 1, 1};
    CHECK_FALSE(cox::validate(plan, job).ok());
    plan.shares.clear();
    plan.cadence_steps = 2;
    CHECK_FALSE(cox::validate(plan, job).ok());
    plan.cadence_steps = 1;
    CHECK(cox::validate(plan, job).ok());
    plan.step_samples = 64;
    CHECK_FALSE(cox::validate(plan, job).ok());
    job.capabilities.accumulation = true;
    for (const std::uint64_t samples : {1ull, 64ull, 1ull << 31}) {
      plan.step_samples = samples;
      CHECK(cox::validate(plan, job).ok());
    }
  }

  TEST_CASE("plans that ask the same of every rank have the same effect, however classed") {
    const Plan a = classed_plan();
    Plan b = a;
    b.id.number = 9;
    b.earliest_round = cox::RoundId(7);
    b.activated_round = cox::RoundId(8);
    std::swap(b.classes[0], b.classes[1]);
    b.rank_class = {ClassId(0), ClassId(1), ClassId(1), ClassId(0)};
    b.classes.push_back(b.classes[0]);
    CHECK(cox::same_effect(a, b));
    CHECK(cox::diff(a, b).empty());
    b.rank_class[3] = ClassId(1);
    CHECK_FALSE(cox::same_effect(a, b));
  }

  TEST_CASE("a difference has one line for each kind of change") {
    const Plan a = classed_plan();
    const Damage changes[] = {
        {"precision: fp32 -> bf16 in blocks 0-1",
         [](Plan& p) { p.precision[0] = p.precision[1] = Precision::bf16; }},
        {"memory of ranks 0, 3: recompute -> keep in blocks 1",
         [](Plan& p) { p.rank_class.assign(4, ClassId(0)); }},
        {"shares: even -> 1 2 3 4",
         [](Plan& p) {
           p.shares = {1, 2, 3, 4};
         }},
        {"batch: the job's -> 96 samples", [](Plan& p) { p.step_samples = 96; }},
        {"cadence: 1 steps -> 4 steps", [](Plan& p) { p.cadence_steps = 4; }},
        {"scaler: ", [](Plan& p) { p.scaler.growth_interval = 100; }},
        {"hold: until round 0 -> until round 50", [](Plan& p) { p.hold_until = cox::RoundId(50); }},
        {"rollback: none -> ticket 1, to before round 5",
         [](Plan& p) {
           p.rollback = {1, cox::RoundId(5)};
         }},
    };
    for (const Damage& change : changes) {
      Plan b = a;
      change.inflict(b);
      CHECK_FALSE(cox::same_effect(a, b));
      const std::vector<std::string> lines = cox::diff(a, b);
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].starts_with(change.says));
    }
  }

  TEST_CASE("the text of a plan names everything a person asks for") {
    Plan plan = classed_plan();
    plan.id.number = 7;
    plan.earliest_round = cox::RoundId(120);
    const std::string text = cox::text(plan);
    for (const char* part :
         {"plan 3.7, from round 120", "fp32 in 3 blocks (0-2)", "class 1 (2 ranks)",
          "recompute in 1 blocks (1)", "shares: even", "batch: the job's", "cadence: 1 steps",
          "hold: until round 0", "rollback: none"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}
