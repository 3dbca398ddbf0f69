#include "coordinator/core/plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "coordinator/core/plan_fields.h"
#include "coordinator/core/reason.h"

#include <doctest/doctest.h>

namespace {

using cox::BlockId;
using cox::MemoryAction;
using cox::Plan;
using cox::Precision;
using cox::ProfileId;
using cox::RankId;

cox::JobFacts capable_job() {
  cox::JobFacts job;
  job.incarnation = 3;
  job.world_size = 4;
  job.blocks = {"a", "b", "c"};
  job.capabilities = {0b0111, 0b0011, true, true, true};
  return job;
}

// Ranks 0 and 3 recompute block 1.
Plan profiled_plan() {
  Plan plan = cox::initial_plan(capable_job());
  plan.profiles.push_back({MemoryAction::keep, MemoryAction::recompute, MemoryAction::keep});
  plan.rank_profile = {ProfileId(1), ProfileId(0), ProfileId(0), ProfileId(1)};
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

  TEST_CASE("knobs keep their numbers and their words") {
    const std::vector<std::string> words = {"precision", "memory actions", "shares",
                                            "the samples of a step", "another knob"};
    for (std::size_t k = 0; k < words.size(); ++k) {
      CHECK(cox::to_string(static_cast<cox::Knob>(k)) == words[k]);
    }
  }

  TEST_CASE("policies keep their numbers and their names, in ascending order") {
    using cox::NamedPolicyKind;
    CHECK(std::ranges::adjacent_find(cox::kPolicyKinds, std::ranges::greater_equal{},
                                     &NamedPolicyKind::kind) == cox::kPolicyKinds.end());
    CHECK(cox::to_string(static_cast<cox::PolicyKind>(9)) == "accumulation");
    CHECK(cox::to_string(static_cast<cox::PolicyKind>(7)) == "unknown");
    CHECK(cox::to_string(static_cast<cox::PolicyKind>(0)) == "decide");
  }

  TEST_CASE("a rank's action is that of its profile") {
    const Plan plan = profiled_plan();
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
        {"profiles", [](Plan& p) { p.profiles.clear(); }},
        {"1024 profiles", [](Plan& p) { p.profiles.resize(1025, p.profiles[0]); }},
        {"profile 1", [](Plan& p) { p.profiles[1].push_back(MemoryAction::keep); }},
        {"offload", [](Plan& p) { p.profiles[0][2] = MemoryAction::offload; }},
        {"rank_profile", [](Plan& p) { p.rank_profile.push_back(ProfileId(0)); }},
        {"rank 2", [](Plan& p) { p.rank_profile[2] = ProfileId(2); }},
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
        {"min_scale", [](Plan& p) { p.scaler.min_scale = -1; }},
        {"max_scale", [](Plan& p) { p.scaler.max_scale = 0.5f; }},
        {"initial_scale", [nan](Plan& p) { p.scaler.initial_scale = nan; }},
        {"growth_factor", [](Plan& p) { p.scaler.growth_factor = 0.9f; }},
        {"backoff_factor", [](Plan& p) { p.scaler.backoff_factor = 1; }},
        {"growth_interval", [](Plan& p) { p.scaler.growth_interval = 0; }},
    };
    REQUIRE(cox::validate(profiled_plan(), capable_job()).ok());
    for (const Damage& damage : damages) {
      Plan plan = profiled_plan();
      damage.inflict(plan);
      const cox::Status status = cox::validate(plan, capable_job());
      CAPTURE(damage.says);
      CAPTURE(status.message());
      CHECK(status.code() == cox::StatusCode::invalid_argument);
      CHECK(status.message().find(damage.says) != std::string::npos);
    }
  }

  TEST_CASE("a job that cannot apply shares or other batches refuses plans with them") {
    cox::JobFacts job = capable_job();
    job.capabilities.shares = job.capabilities.accumulation = false;
    Plan plan = cox::initial_plan(job);
    plan.shares = {1, 1, 1, 1};
    CHECK_FALSE(cox::validate(plan, job).ok());
    plan.shares.clear();
    CHECK(cox::validate(plan, job).ok());
    plan.step_samples = 64;
    CHECK_FALSE(cox::validate(plan, job).ok());
    job.capabilities.accumulation = true;
    for (const std::uint64_t samples : {1ull, 64ull, 1ull << 31}) {
      plan.step_samples = samples;
      CHECK(cox::validate(plan, job).ok());
    }
  }

  TEST_CASE("plans that ask the same of every rank have the same effect, whatever the profiles") {
    const Plan a = profiled_plan();
    Plan b = a;
    b.id.number = 9;
    b.earliest_round = cox::RoundId(7);
    b.activated_round = cox::RoundId(8);
    std::swap(b.profiles[0], b.profiles[1]);
    b.rank_profile = {ProfileId(0), ProfileId(1), ProfileId(1), ProfileId(0)};
    b.profiles.push_back(b.profiles[0]);
    CHECK(cox::same_effect(a, b));
    CHECK(cox::diff(a, b).empty());
    b.rank_profile[3] = ProfileId(1);
    CHECK_FALSE(cox::same_effect(a, b));
  }

  TEST_CASE("a difference has one line for each kind of change") {
    const Plan a = profiled_plan();
    const Damage changes[] = {
        {"precision: fp32 -> bf16 in blocks 0-1",
         [](Plan& p) { p.precision[0] = p.precision[1] = Precision::bf16; }},
        {"memory of ranks 0, 3: recompute -> keep in blocks 1",
         [](Plan& p) { p.rank_profile.assign(4, ProfileId(0)); }},
        {"shares: even -> 1 2 3 4",
         [](Plan& p) {
           p.shares = {1, 2, 3, 4};
         }},
        {"step_samples: the job's -> 96 samples", [](Plan& p) { p.step_samples = 96; }},
        {"scaler: ", [](Plan& p) { p.scaler.growth_interval = 100; }},
        {"hold_until: until round 0 -> until round 50",
         [](Plan& p) { p.hold_until = cox::RoundId(50); }},
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

  TEST_CASE("texts and differences name the level of recompute") {
    Plan plan = profiled_plan();
    plan.profiles[1][1] = cox::recompute_level(2);
    CHECK(cox::text(plan).find("recompute 2 of 7 in 1 blocks (1)") != std::string::npos);
    const std::vector<std::string> lines = cox::diff(profiled_plan(), plan);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].ends_with("recompute -> recompute 2 of 7 in blocks 1"));
    cox::JobFacts job = capable_job();
    CHECK(cox::validate(plan, job).message().ends_with(
        "block 1: recompute 2 of 7 cannot be applied by this job"));
    job.capabilities.actions |= cox::kEveryRecompute;
    CHECK(cox::validate(plan, job).ok());
    plan.profiles[1][1] = static_cast<MemoryAction>(11);
    CHECK(cox::validate(plan, job).message().ends_with("expected 0 to 10, found 11"));
  }

  TEST_CASE("the text of a plan names everything a person asks for") {
    Plan plan = profiled_plan();
    plan.id.number = 7;
    plan.earliest_round = cox::RoundId(120);
    const std::string text = cox::text(plan);
    for (const char* part :
         {"plan 3.7, from round 120", "fp32 in 3 blocks (0-2)", "profile 1 (2 ranks)",
          "recompute in 1 blocks (1)", "shares: even", "step_samples: the job's",
          "hold_until: until round 0", "rollback: none"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}
