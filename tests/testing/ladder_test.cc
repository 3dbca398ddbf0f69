// Reactions to a straggler without shares, in whole simulated jobs: lighter recompute on the
// straggler, or a faster format on all ranks. Both reactions end after the straggler's recovery.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/policies/memory/memory.h"
#include "coordinator/policies/precision/precision.h"
#include "coordinator/policies/shares/shares.h"
#include "coordinator/policies/stragglers/stragglers.h"
#include "coordinator/testing/steered_job.h"

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::RankId;
using cox::Reason;
using cox::ReasonCode;
using cox::RoundId;
using cox::testing::SteeredJob;
using cox::testing::SteeredScenario;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::uint64_t kSlowFrom = 200;
constexpr std::uint64_t kSlowUntil = 600;

// Returns twelve blocks of 50 MiB; recomputing each costs 2 of 100 ms.
cox::MemoryModel fine_model() {
  cox::MemoryModel model;
  for (std::size_t kept = 0; kept <= 12; ++kept) {
    std::vector<MemoryAction> actions(12, MemoryAction::recompute);
    std::fill_n(actions.begin(), kept, MemoryAction::keep);
    const auto n = static_cast<std::int64_t>(kept);
    model.front.push_back({(400 + 50 * n) * kMiB, 2000 * (12 - n), actions});
  }
  model.base_bytes = 400 * kMiB;
  model.step_us = 100000;
  model.kept_bytes.assign(12, 50 * kMiB);
  return model;
}

cox::JobFacts ladder_job() {
  cox::JobFacts job;
  job.name = "ladder";
  job.incarnation = 1;
  job.world_size = 4;
  for (int b = 0; b < 12; ++b) job.blocks.push_back("h." + std::to_string(b));
  job.capabilities = {0xF, cox::kEveryAction, false, true, true};
  return job;
}

// Three of twelve blocks gain much from 8 bits, the others nothing.
cox::JobFacts format_job(std::int32_t ranks) {
  cox::JobFacts job = ladder_job();
  job.world_size = ranks;
  job.precision.blocks.assign(12, {{8000, 5000, 5200, 5000}});
  for (std::size_t b = 0; b < 3; ++b) job.precision.blocks[b].step_us = {20000, 12000, 13000, 7000};
  return job;
}

cox::Config settings(const std::string& text) {
  cox::Config config;
  REQUIRE(cox::apply_text(config, text, "test").ok());
  REQUIRE(cox::validate(config).ok());
  return config;
}

SteeredScenario with_straggler(double slowdown, RankId straggler = RankId(2)) {
  SteeredScenario scenario;
  scenario.noise = {.rank = 0.01, .common = 0.01};
  scenario.slowdown = [slowdown, straggler](RankId rank, RoundId round) {
    const bool is_slow =
        rank == straggler && round.value() >= kSlowFrom && round.value() < kSlowUntil;
    return is_slow ? slowdown : 1.0;
  };
  return scenario;
}

std::size_t kept_blocks(const cox::Plan& plan, RankId rank) {
  const auto& actions = plan.profiles[cox::profile_of(plan, rank).value()];
  return static_cast<std::size_t>(std::ranges::count(actions, MemoryAction::keep));
}

const Reason* first_said(const SteeredJob& job, ReasonCode code) {
  const auto found = std::ranges::find(job.said(), code, &Reason::code);
  return found == job.said().end() ? nullptr : &*found;
}

std::int64_t times_said(const SteeredJob& job, ReasonCode code) {
  return std::ranges::count(job.said(), code, &Reason::code);
}

const Reason* last_said(const SteeredJob& job, ReasonCode code) {
  const Reason* last = nullptr;
  for (const Reason& reason : job.said()) {
    if (reason.code == code) last = &reason;
  }
  return last;
}

const cox::Effect* effect_of(const SteeredJob& job, ReasonCode code) {
  for (const auto& effect : *job.last().effects) {
    if (effect->reason.code == code && effect->plan) return effect.get();
  }
  return nullptr;
}

}  // namespace

TEST_SUITE("testing.ladder") {
  TEST_CASE("shares off: lighter recompute on a straggler shortens the step, and ends with it") {
    cox::JobFacts facts = ladder_job();
    facts.memory.models = {fine_model()};
    facts.memory.limit_bytes.assign(4, 1150 * kMiB);  // balanced: 733 MiB, conservative 879
    SteeredJob job(with_straggler(1.3), facts, settings("memory.budget = balanced"),
                   {std::make_shared<cox::Stragglers>(), std::make_shared<cox::MemoryPolicy>()});
    job.rounds(kSlowFrom - 1);
    const std::size_t kept_before = kept_blocks(job.active(), RankId(2));
    const cox::Plan before = job.active();
    REQUIRE(kept_before < 8);
    job.rounds(200);
    CHECK(kept_blocks(job.active(), RankId(2)) > kept_before);
    CHECK(kept_blocks(job.active(), RankId(0)) == kept_before);
    CHECK(job.step_seconds(job.active()) < job.step_seconds(before));
    const cox::Effect* const effect = effect_of(job, ReasonCode::memory_straggler);
    REQUIRE(effect != nullptr);
    CHECK(effect->verdict == cox::Verdict::helped);
    const double truth = job.step_seconds(job.active()) / job.step_seconds(before);
    CHECK(effect->measured.low < truth);
    CHECK(effect->measured.high > truth);
    CHECK(effect->reason.forecast.step_ratio == doctest::Approx(truth).epsilon(0.03));
    CHECK(effect->reason.forecast.step_ratio_low < effect->reason.forecast.step_ratio);
    job.rounds(kSlowUntil - job.now().value() + 200);
    CHECK(kept_blocks(job.active(), RankId(2)) == kept_before);
    CHECK(first_said(job, ReasonCode::taken_back) == nullptr);
    CHECK(first_said(job, ReasonCode::memory_breach) == nullptr);
    const Reason* const ended = last_said(job, ReasonCode::memory_over_budget);
    REQUIRE(ended != nullptr);
    CHECK(ended->text.find("rank 2 is no longer slow, and its plan of 850 MiB does not fit its "
                           "budget of 733 MiB") == 0);
  }

  TEST_CASE("a faster format for a straggler shortens the step, and ends with it") {
    // With two ranks, the slow one in 8 bits is as fast as before its slowdown.
    for (const std::int32_t ranks : {2, 4}) {
      CAPTURE(ranks);
      cox::JobFacts facts = format_job(ranks);
      // Patience is long, so only a straggler brings 8 bits early.
      SteeredJob job(
          with_straggler(1.3, RankId(ranks - 1)), facts,
          settings("precision.format = auto\nprecision.patience_rounds = 700"),
          {std::make_shared<cox::Stragglers>(), std::make_shared<cox::PrecisionPolicy>()});
      job.rounds(kSlowFrom - 1);
      const cox::Plan before = job.active();
      REQUIRE(before.precision[0] == cox::Precision::bf16);
      job.rounds(kSlowUntil - kSlowFrom - 20);
      CHECK(job.active().precision[0] == cox::Precision::fp8);
      CHECK(job.active().precision[11] == cox::Precision::bf16);
      CHECK(job.step_seconds(job.active()) < job.step_seconds(before));
      const cox::Effect* const effect = effect_of(job, ReasonCode::precision_straggler);
      REQUIRE(effect != nullptr);
      CHECK(effect->verdict == cox::Verdict::helped);
      job.rounds(120);
      CHECK(job.active().precision[0] == cox::Precision::bf16);
      CHECK(first_said(job, ReasonCode::taken_back) == nullptr);
      // Three blocks change once there and once back, and no other rank is named.
      CHECK(times_said(job, ReasonCode::precision_straggler) == 6);
      CHECK(times_said(job, ReasonCode::straggler_found) == 1);
      CHECK(times_said(job, ReasonCode::straggler_gone) == 1);
    }
  }

  TEST_CASE("a straggler brings an imitated format where it was measured to be faster, only") {
    for (const std::int64_t fp8_us : {7000, 13000}) {
      CAPTURE(fp8_us);
      cox::JobFacts facts = format_job(4);
      facts.precision.emulated = cox::only(cox::Precision::fp8);
      for (std::size_t b = 0; b < 3; ++b) facts.precision.blocks[b].step_us[3] = fp8_us;
      SteeredJob job(
          with_straggler(1.3), facts,
          settings("precision.format = auto\nprecision.patience_rounds = 700\n"
                   "precision.emulate = on"),
          {std::make_shared<cox::Stragglers>(), std::make_shared<cox::PrecisionPolicy>()});
      job.rounds(kSlowUntil - 20);
      const bool is_faster = fp8_us < 12000;
      CHECK(job.active().precision[0] == (is_faster ? cox::Precision::fp8 : cox::Precision::bf16));
    }
  }

  TEST_CASE("a slow rank with fewer samples keeps more within the same budget of bytes") {
    cox::JobFacts facts = ladder_job();
    facts.capabilities.shares = true;
    facts.global_batch = 256;
    cox::MemoryModel model = fine_model();
    model.samples = 64;
    facts.memory.models = {model};
    SteeredJob job(with_straggler(1.6), facts, settings("memory.budget = 700MiB\nshares.mode = on"),
                   {std::make_shared<cox::Stragglers>(), std::make_shared<cox::MemoryPolicy>(),
                    std::make_shared<cox::SharesPolicy>()});
    job.rounds(kSlowFrom - 1);
    const cox::Plan before = job.active();
    const std::size_t kept_before = kept_blocks(before, RankId(2));
    CHECK(kept_before == 6);
    job.rounds(kSlowUntil - kSlowFrom - 20);
    REQUIRE_FALSE(job.active().shares.empty());
    CHECK(job.active().shares[2] < job.active().shares[0]);
    CHECK(kept_blocks(job.active(), RankId(2)) > kept_before);
    // Fast ranks recompute more to take larger shares.
    CHECK(kept_blocks(job.active(), RankId(0)) < kept_before);
    CHECK(job.step_seconds(job.active()) < job.step_seconds(before));
    CHECK(first_said(job, ReasonCode::taken_back) == nullptr);
  }

  TEST_CASE("where nothing is left to decide a person is told the likely cause") {
    SteeredJob job(with_straggler(1.3), ladder_job(), {}, {std::make_shared<cox::Stragglers>()});
    job.rounds(kSlowFrom + cox::kAdviceRounds + 40);
    const Reason* const advice = first_said(job, ReasonCode::straggler_advice);
    REQUIRE(advice != nullptr);
    CHECK(advice->rank == RankId(2));
    CHECK(advice->text.find("likely cause: compute (check its device") != std::string::npos);
    CHECK(times_said(job, ReasonCode::straggler_advice) == 1);
  }

  TEST_CASE("the advice names the machine and what it told, after a restart too") {
    SteeredScenario scenario = with_straggler(1.3);
    scenario.host = [](RankId rank) {
      cox::HostEvidence host{.host = {'n', '7'}};
      host.steal_ratio = rank == RankId(2) ? 0.25F : 0.0F;
      return host;
    };
    SteeredJob job(std::move(scenario), ladder_job(), {}, {std::make_shared<cox::Stragglers>()});
    job.rounds(kSlowFrom);
    job.save_and_restore();
    job.rounds(cox::kAdviceRounds + 40);
    const Reason* const advice = first_said(job, ReasonCode::straggler_advice);
    REQUIRE(advice != nullptr);
    CHECK(advice->text.find("rank 2 on n7 is still ") == 0);
    CHECK(advice->text.find("likely cause: host (the hypervisor gave 25 %") != std::string::npos);
  }

  TEST_CASE("signs of the machine say more about the cause than the phase does") {
    cox::SlowRank slow;
    slow.rank = RankId(3);
    slow.slowdown_ratio = 1.4;
    struct Case {
      float cox::HostEvidence::*sign;
      float value;
      cox::SlowCause cause;
      const char* words;
    };
    using Signs = cox::HostEvidence;
    const Case cases[] = {
        {&Signs::steal_ratio, 0.2F, cox::SlowCause::host, "gave 20 % of its CPU time"},
        {&Signs::throttled_ratio, 0.1F, cox::SlowCause::host, "held it up for 10 % of the time"},
        {&Signs::clock_ratio, 0.5F, cox::SlowCause::compute, "clock is at 50 % of the largest"},
        {&Signs::memory_pressure, 0.3F, cox::SlowCause::memory_pressure, "waits for memory 30 %"},
        {&Signs::io_pressure, 0.5F, cox::SlowCause::data, "waits for reads and writes 50 %"},
        {&Signs::load_per_core, 2, cox::SlowCause::host, "has work for 200 % of its cores"},
        {&Signs::clock_ratio, 1, cox::SlowCause::compute, "check its device"},
    };
    slow.phase_index = 1;
    for (const Case& c : cases) {
      Signs host{.host = {'n', '7'}};
      host.*c.sign = c.value;
      const cox::Advice advice = cox::advise(slow, &host);
      CAPTURE(advice.text);
      CHECK(advice.cause == c.cause);
      CHECK(advice.text.find(c.words) != std::string::npos);
      CHECK(advice.text.find("rank 3 on n7 is still 40.0 % slow") == 0);
    }
  }
}
