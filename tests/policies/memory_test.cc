#include "coordinator/policies/memory/memory.h"

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/policies/memory/rank_memory.h"
#include "tests/policies/memory_job.h"

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::Outcome;
using cox::RankId;
using cox::Reason;
using cox::ReasonCode;
using cox::test::kMiB;
using cox::test::memory_job;
using cox::test::SimulatedMemoryJob;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void report_failure(cox::RankSignal& signal, std::uint16_t block, MemoryAction action) {
  cox::BlockFailure failure;
  failure.block = cox::BlockId(block);
  failure.blocks = 4;
  failure.action = action;
  std::string("saves other tensors").copy(failure.what.data(), failure.what.size());
  signal.fragment = cox::make_fragment(failure);
}

std::vector<std::int64_t> budgets_in_mib(const SimulatedMemoryJob& run) {
  std::vector<std::int64_t> budgets = cox::memory_budgets(run.job, run.config, run.state);
  for (std::int64_t& bytes : budgets) bytes /= kMiB;
  return budgets;
}

}  // namespace

TEST_SUITE("policies.memory") {
  TEST_CASE("the first step runs under the fastest plan within the budget") {
    struct {
      const char* settings;
      const char* plan;
      ReasonCode code;
    } const table[] = {
        {"memory.budget = 850MiB", "rrkk", ReasonCode::memory_over_budget},
        {"memory.budget = 800MiB", "rrkk", ReasonCode::memory_over_budget},
        {"memory.budget = 799MiB", "rrrk", ReasonCode::memory_over_budget},
        {"memory.budget = 1000MiB", "kkkk", ReasonCode::memory_fits},
        {"memory.budget = 600MiB", "rrrr", ReasonCode::memory_over_budget},
        {"memory.budget = 100MiB", "rrrr", ReasonCode::memory_infeasible},
        {"memory.mode = on", "kkkk", ReasonCode::memory_fits},
        {"memory.force = h.1=recompute", "krkk", ReasonCode::memory_rules},
        {"memory.budget = 700MiB\nmemory.mode = observe", "kkkk", ReasonCode::memory_over_budget}};
    for (const auto& row : table) {
      CAPTURE(row.settings);
      SimulatedMemoryJob run(memory_job(2), row.settings);
      const std::vector<Reason> reasons = run.begin();
      REQUIRE_FALSE(reasons.empty());
      CHECK(reasons.back().code == row.code);
      CHECK(run.letters(0) == row.plan);
      CHECK(run.letters(1) == row.plan);
      CHECK(run.active.id.number == 0);
      CHECK(cox::validate(run.active, run.job).ok());
      run.rounds(100);
      CHECK(run.plans == 0);
      CHECK(run.letters(1) == row.plan);
    }
  }

  TEST_CASE("without a budget nothing is planned, and off is off") {
    for (const char* settings : {"", "memory.budget = 600MiB\nmemory.mode = off"}) {
      SimulatedMemoryJob run(memory_job(2), settings);
      CHECK(run.begin().empty());
      run.rounds(30);
      CHECK(run.said.empty());
      CHECK(run.plans == 0);
    }
  }

  TEST_CASE("a change has its numbers, and so has a round in which nothing changes, once") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    const std::vector<Reason> reasons = run.begin();
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].outcome == Outcome::changed);
    CHECK(reasons[0].text ==
          "rank 0 would peak at 1000 MiB, 150 MiB above its budget of 850 MiB; all 2 ranks: 2 of 4 "
          "blocks recomputed, predicted peak 800 MiB of 850 MiB (fastest plan: 1000 MiB), +8.0 % "
          "time");
    run.rounds(50);
    REQUIRE(run.said.size() == 1);
    CHECK(run.said[0].outcome == Outcome::unchanged);
    CHECK(run.said[0].text ==
          "nothing changes: all 2 ranks: 2 of 4 blocks recomputed, predicted peak 800 MiB of 850 "
          "MiB (fastest plan: 1000 MiB), +8.0 % time");
  }

  TEST_CASE(
      "ranks with budgets of their own have plans of their own, in as few profiles as needed") {
    SimulatedMemoryJob run(
        memory_job(4), "memory.budget = 2GiB\nmemory.budget_of_rank = 0:650MiB,2:900MiB,3:650MiB");
    const std::vector<Reason> reasons = run.begin();
    CHECK(run.letters(0) == "rrrr");
    CHECK(run.letters(1) == "kkkk");
    CHECK(run.letters(2) == "rkkk");
    CHECK(run.letters(3) == "rrrr");
    CHECK(run.active.profiles.size() == 3);
    REQUIRE(reasons.size() == 1);
    CHECK(has(reasons[0].text, "ranks 0, 3: 4 of 4 blocks recomputed"));
    CHECK(has(reasons[0].text, "rank 2: 1 of 4 blocks recomputed"));
    CHECK_FALSE(has(reasons[0].text, "rank 1"));
  }

  TEST_CASE("parts of the limit are budgets, and a limit that is not known is said") {
    struct {
      const char* budget;
      std::int64_t limit_mib;
      const char* plan;
    } const table[] = {{"0.7", 1000, "rrrk"},
                       {"0.7", 2000, "kkkk"},
                       {"2GiB", 800, "rrkk"},           // larger than available
                       {"conservative", 1200, "kkkk"},  // keeping all fits 85 %: 1020
                       {"conservative", 1100, "rrkk"},  // 0.9 * 935 = 841
                       {"balanced", 1100, "rrrk"},      // 0.75 * 935 = 701
                       {"balanced", 1200, "kkkk"},
                       {"aggressive", 1500, "rrrr"},  // 0.5 * 1275 = 637, though all fits
                       {"aggressive", 4000, "kkkk"}};
    for (const auto& row : table) {
      CAPTURE(row.budget);
      CAPTURE(row.limit_mib);
      cox::JobFacts job = memory_job(1);
      job.memory.limit_bytes = {row.limit_mib * kMiB};
      SimulatedMemoryJob run(job, "memory.budget = " + std::string(row.budget));
      run.begin();
      CHECK(run.letters(0) == row.plan);
    }
    SimulatedMemoryJob unknown(memory_job(1), "memory.budget = balanced");
    unknown.begin();
    unknown.rounds(5);
    CHECK(unknown.letters(0) == "kkkk");
    REQUIRE(unknown.said_with(ReasonCode::memory_unknown).size() == 1);
    CHECK(has(unknown.said[0].text, "give memory.budget in bytes"));
  }

  TEST_CASE("a limit that only reports tell counts from then on") {
    SimulatedMemoryJob run(memory_job(1), "memory.budget = 0.7");
    run.begin();
    run.change = [](cox::RankSignal& signal) { signal.memory_limit_bytes = 1000 * kMiB; };
    run.rounds(10);
    CHECK(run.letters(0) == "rrrk");
    CHECK(run.plans == 1);
  }

  TEST_CASE("an injected headroom is what a rank has above its first peak") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 1\nmemory.inject_headroom = 0");
    run.begin();
    run.real_peak = [&](std::size_t rank) { return run.predicted(rank); };
    run.rounds(20);
    CHECK(run.plans == 0);
    SimulatedMemoryJob tight(memory_job(2), "memory.budget = 0.8\nmemory.inject_headroom = 40MiB");
    tight.begin();
    tight.rounds(40);
    CHECK(tight.plans == 1);
    CHECK(tight.letters(1) == "rrkk");  // 0.8 * 1040 = 832
  }

  TEST_CASE("a budget that cannot be met is said with the smallest that can, and least is used") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget_of_rank = 1:512MiB\nmemory.offload = off");
    run.begin();
    CHECK(run.letters(0) == "kkkk");
    CHECK(run.letters(1) == "rrrr");
    run.rounds(40);
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_infeasible);
    REQUIRE(told.size() == 1);
    CHECK(told[0].rank == RankId(1));
    CHECK(told[0].outcome == Outcome::unchanged);
    CHECK(told[0].text ==
          "the budget of rank 1, 512 MiB, cannot be met: the smallest peak is 600 MiB, 88.0 MiB "
          "more; give it at least 630 MiB or make the micro-batch smaller; lift these limits "
          "(memory.offload is off)");
  }

  TEST_CASE("forced and forbidden actions hold, and rules that fit nothing are told") {
    struct {
      const char* rules;
      const char* plan;
    } const table[] = {{"memory.force = h.*=keep", "kkkr"},  // the least remaining
                       {"memory.force = head=offload", "rrko"},
                       {"memory.forbid = h.0=recompute", "krrk"},
                       {"memory.recompute = off", "kkkk"},
                       {"memory.force = h.*=recompute,head=keep", "rrrk"},
                       {"memory.force = *=recompute,h.2=keep", "rrkr"}};
    for (const auto& row : table) {
      CAPTURE(row.rules);
      SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB\n" + std::string(row.rules));
      run.begin();
      CHECK(run.letters(0) == row.plan);
      run.rounds(60);
      CHECK(run.plans == 0);
      const bool forces = std::string(row.rules).find("force") != std::string::npos;
      CHECK(run.said_with(ReasonCode::memory_rules).size() == (forces ? 1u : 0u));
    }
    SimulatedMemoryJob free(memory_job(1), "memory.force = h.1=recompute");
    CHECK(has(free.begin().back().text,
              "rank 0: 1 of 4 blocks recomputed, predicted peak 1000 MiB, "
              "no budget"));
    // A plan older than the rules, as after a restart with other settings.
    SimulatedMemoryJob changed(memory_job(2),
                               "memory.budget = 850MiB\nmemory.forbid = h.1=recompute");
    changed.state.plan.profiles = {cox::test::actions_of("rrkk")};
    changed.active = changed.state.plan;
    changed.rounds(1);
    REQUIRE(changed.said_with(ReasonCode::memory_rules).size() == 1);
    CHECK(has(changed.said_with(ReasonCode::memory_rules)[0].text,
              "block h.1 must not have recompute: memory.forbid has h.1=recompute; all 2 ranks"));
    CHECK(cox::test::letters_of(changed.state.plan.profiles[0])[1] == 'k');
  }

  TEST_CASE("what the job cannot apply is never planned") {
    cox::JobFacts job = memory_job(2);
    job.capabilities.actions = cox::only(MemoryAction::keep);
    SimulatedMemoryJob run(job, "memory.budget = 700MiB\nmemory.force = head=recompute");
    run.begin();
    run.rounds(10);
    CHECK(run.letters(0) == "kkkk");
    CHECK(run.plans == 0);
    CHECK_FALSE(run.said_with(ReasonCode::memory_infeasible).empty());
    CHECK_FALSE(run.said_with(ReasonCode::not_capable).empty());
  }

  TEST_CASE("an action that failed rests on all ranks, then is tried again") {
    SimulatedMemoryJob run(memory_job(3), "memory.budget = 850MiB");
    run.begin();
    REQUIRE(run.letters(0) == "rrkk");
    run.rounds(10);
    run.change = [&run](cox::RankSignal& signal) {
      const bool asked = run.letters(1)[0] == 'r';
      if (signal.rank == RankId(1) && asked) report_failure(signal, 0, MemoryAction::recompute);
    };
    run.round();
    const std::uint64_t failed_at = run.now;
    REQUIRE(run.said_with(ReasonCode::memory_block_failed).size() == 2);
    const std::string told = run.said_with(ReasonCode::memory_block_failed)[0].text;
    CHECK(told ==
          "block h.0 failed under recompute on rank 1 (saves other tensors); no rank uses it there "
          "for 50 rounds");
    run.rounds(5);
    CHECK(run.letters(0)[0] == 'k');
    CHECK(run.predicted(0) <= 850 * kMiB);
    run.change = [](cox::RankSignal&) {};
    while (run.said_with(ReasonCode::memory_block_retried).empty() && run.now < 200) run.round();
    CHECK(run.now >= failed_at + 50);
    CHECK(run.now <= failed_at + 55);
    CHECK(has(run.said.back().text, "; all 3 ranks: 2 of 4"));
    run.rounds(5);
    CHECK(run.letters(2) == "rrkk");
    const int plans = run.plans;
    run.rounds(100);
    CHECK(run.plans == plans);
  }

  TEST_CASE("an action rests from the last word about its failure, while the plan cannot change") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    run.state.plan.hold_until = cox::RoundId(40);
    std::uint64_t last_word = 0;
    run.change = [&](cox::RankSignal& signal) {
      if (run.letters(0)[0] != 'r' || last_word >= 45) return;
      report_failure(signal, 0, MemoryAction::recompute);
      last_word = run.now;
    };
    run.rounds(60);
    REQUIRE(last_word > 39);
    CHECK(run.letters(0)[0] == 'k');
    while (run.said_with(ReasonCode::memory_block_retried).empty() && run.now < 200) run.round();
    CHECK(run.now >= last_word + 50);
    CHECK(run.now < last_word + 60);
  }

  TEST_CASE("only observing, it says what it would do and changes nothing") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 700MiB\nmemory.mode = observe");
    run.begin();
    run.rounds(50);
    CHECK(run.plans == 0);
    REQUIRE(run.said.size() == 2);  // once predicted, once measured
    CHECK(run.said[0].code == ReasonCode::memory_over_budget);
    CHECK(run.said[1].code == ReasonCode::memory_breach);
    for (const Reason& reason : run.said) {
      CHECK(reason.outcome == Outcome::observed);
      CHECK(has(reason.text, "3 of 4 blocks recomputed"));
    }
  }

  TEST_CASE("where nothing was measured, or something else, that is said and nothing changes") {
    cox::JobFacts job = memory_job(2);
    SUBCASE("nothing") {
      job.memory = {};
    }
    SUBCASE("other blocks") {
      job.blocks.pop_back();
    }
    SUBCASE("other ranks") {
      job.memory.model_of_rank = {0, 0, 0};
    }
    SUBCASE("other models") {
      job.memory.model_of_rank = {0, 1};
    }
    SimulatedMemoryJob run(job, "memory.budget = 700MiB");
    run.begin();
    run.rounds(20);
    CHECK(run.plans == 0);
    REQUIRE(run.said.size() == 1);
    CHECK(run.said[0].code == ReasonCode::memory_unknown);
  }

  TEST_CASE("without a plan of memory, or without facts, telemetry shows no budgets") {
    CHECK(budgets_in_mib(SimulatedMemoryJob(memory_job(2), "")).empty());
    CHECK(budgets_in_mib(
              SimulatedMemoryJob(memory_job(2), "memory.budget = 700MiB\nmemory.mode = off"))
              .empty());
    cox::JobFacts unmeasured = memory_job(2);
    unmeasured.memory = {};
    CHECK(budgets_in_mib(SimulatedMemoryJob(unmeasured, "memory.budget = 700MiB")).empty());
  }

  TEST_CASE("every rank has its own budget, and 0 where nothing limits it") {
    const SimulatedMemoryJob bytes(memory_job(3),
                                   "memory.budget = 700MiB\nmemory.budget_of_rank = 1:900MiB");
    CHECK(budgets_in_mib(bytes) == std::vector<std::int64_t>{700, 900, 700});
    CHECK(budgets_in_mib(SimulatedMemoryJob(memory_job(2), "memory.mode = on")) ==
          std::vector<std::int64_t>{0, 0});
  }

  TEST_CASE("a part of a limit is known once the limit is, from the start or from reports") {
    cox::JobFacts job = memory_job(2);
    job.memory.limit_bytes = {2000 * kMiB, 0};
    SimulatedMemoryJob run(job, "memory.budget = 0.5");
    CHECK(budgets_in_mib(run) == std::vector<std::int64_t>{1000, 0});
  }

  TEST_CASE("a correction that no bytes can have makes a restored state fresh") {
    const cox::JobFacts job = memory_job(2);
    const cox::MemoryConfig config;
    const auto correction_of = [&](std::int64_t kept) {
      cox::MemoryState state = cox::take_memory_state({}, job, config);
      state.ranks[1].correction_bytes = kept;
      const std::string saved = cox::PolicyState::of(std::move(state)).bytes();
      return cox::take_memory_state(cox::PolicyState::from_bytes(saved), job, config)
          .ranks[1]
          .correction_bytes;
    };
    CHECK(correction_of(-5 * kMiB) == -5 * kMiB);
    for (const std::int64_t kept : {INT64_MIN, INT64_MAX, std::int64_t{1} << 62})
      CHECK(correction_of(kept) == 0);
  }

  TEST_CASE("the budget is the one that the policy has learnt to decide by") {
    cox::JobFacts job = memory_job(2);
    job.memory.limit_bytes = {1200 * kMiB, 1200 * kMiB};
    SimulatedMemoryJob run(job, "memory.budget = conservative");
    CHECK(budgets_in_mib(run) == std::vector<std::int64_t>{1020, 1020});  // keeping all fits 85 %
    run.real_peak = [&run](std::size_t rank) {
      return run.predicted(rank) + (rank == 1 ? 100 * kMiB : 0);
    };
    run.begin();
    run.rounds(6);
    CHECK(budgets_in_mib(run) == std::vector<std::int64_t>{1020, 918});  // rank 1 exceeds that
  }
}
