#include "coordinator/policies/memory.h"

#include <string>
#include <vector>

#include "tests/policies/memory_game.h"

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::Outcome;
using cox::RankId;
using cox::Reason;
using cox::ReasonCode;
using cox::test::kMiB;
using cox::test::memory_job;
using cox::test::MemoryGame;

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
      MemoryGame game(memory_job(2), row.settings);
      const std::vector<Reason> reasons = game.begin();
      REQUIRE_FALSE(reasons.empty());
      CHECK(reasons.back().code == row.code);
      CHECK(game.letters(0) == row.plan);
      CHECK(game.letters(1) == row.plan);
      CHECK(game.active.id.number == 0);
      CHECK(cox::validate(game.active, game.job).ok());
      game.rounds(100);
      CHECK(game.plans == 0);
      CHECK(game.letters(1) == row.plan);
    }
  }

  TEST_CASE("without a budget nothing is planned, and off is off") {
    for (const char* settings : {"", "memory.budget = 600MiB\nmemory.mode = off"}) {
      MemoryGame game(memory_job(2), settings);
      CHECK(game.begin().empty());
      game.rounds(30);
      CHECK(game.said.empty());
      CHECK(game.plans == 0);
    }
  }

  TEST_CASE("a change has its numbers, and so has a round in which nothing changes, once") {
    MemoryGame game(memory_job(2), "memory.budget = 850MiB");
    const std::vector<Reason> reasons = game.begin();
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0].outcome == Outcome::changed);
    CHECK(reasons[0].text ==
          "rank 0 would peak at 1000 MiB, 150 MiB above its budget of 850 MiB; all 2 ranks: 2 of 4 "
          "blocks recomputed, predicted peak 800 MiB of 850 MiB (fastest plan: 1000 MiB), +8.0 % "
          "time");
    game.rounds(50);
    REQUIRE(game.said.size() == 1);
    CHECK(game.said[0].outcome == Outcome::unchanged);
    CHECK(game.said[0].text ==
          "nothing changes: all 2 ranks: 2 of 4 blocks recomputed, predicted peak 800 MiB of 850 "
          "MiB (fastest plan: 1000 MiB), +8.0 % time");
  }

  TEST_CASE(
      "ranks with budgets of their own have plans of their own, in as few classes as needed") {
    MemoryGame game(memory_job(4),
                    "memory.budget = 2GiB\nmemory.budget_of_rank = 0:650MiB,2:900MiB,3:650MiB");
    const std::vector<Reason> reasons = game.begin();
    CHECK(game.letters(0) == "rrrr");
    CHECK(game.letters(1) == "kkkk");
    CHECK(game.letters(2) == "rkkk");
    CHECK(game.letters(3) == "rrrr");
    CHECK(game.active.classes.size() == 3);
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
                       {"2GiB", 800, "rrkk"},           // more than there is
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
      MemoryGame game(job, "memory.budget = " + std::string(row.budget));
      game.begin();
      CHECK(game.letters(0) == row.plan);
    }
    MemoryGame unknown(memory_job(1), "memory.budget = balanced");
    unknown.begin();
    unknown.rounds(5);
    CHECK(unknown.letters(0) == "kkkk");
    REQUIRE(unknown.said_with(ReasonCode::memory_unknown).size() == 1);
    CHECK(has(unknown.said[0].text, "give memory.budget in bytes"));
  }

  TEST_CASE("a limit that only reports tell counts from then on") {
    MemoryGame game(memory_job(1), "memory.budget = 0.7");
    game.begin();
    game.change = [](cox::RankSignal& signal) { signal.memory_limit_bytes = 1000 * kMiB; };
    game.rounds(10);
    CHECK(game.letters(0) == "rrrk");
    CHECK(game.plans == 1);
  }

  TEST_CASE("an injected headroom is what a rank has above its first peak") {
    MemoryGame game(memory_job(2), "memory.budget = 1\nmemory.inject_headroom = 0");
    game.begin();
    game.real_peak = [&](std::size_t rank) { return game.predicted(rank); };
    game.rounds(20);
    CHECK(game.plans == 0);
    MemoryGame tight(memory_job(2), "memory.budget = 0.8\nmemory.inject_headroom = 40MiB");
    tight.begin();
    tight.rounds(40);
    CHECK(tight.plans == 1);
    CHECK(tight.letters(1) == "rrkk");  // 0.8 * 1040 = 832
  }

  TEST_CASE("a budget that cannot be met is said with the smallest that can, and least is used") {
    MemoryGame game(memory_job(2), "memory.budget_of_rank = 1:512MiB\nmemory.offload = off");
    game.begin();
    CHECK(game.letters(0) == "kkkk");
    CHECK(game.letters(1) == "rrrr");
    game.rounds(40);
    const std::vector<Reason> told = game.said_with(ReasonCode::memory_infeasible);
    REQUIRE(told.size() == 1);
    CHECK(told[0].rank == RankId(1));
    CHECK(told[0].outcome == Outcome::unchanged);
    CHECK(told[0].text ==
          "the budget of rank 1, 512 MiB, cannot be met: the smallest peak is 600 MiB, 88.0 MiB "
          "more; give it at least 600 MiB or make the micro-batch smaller; lift what limits it "
          "(memory.offload is off)");
  }

  TEST_CASE("forced and forbidden actions hold, and rules that fit nothing are told") {
    struct {
      const char* rules;
      const char* plan;
    } const table[] = {{"memory.force = h.*=keep", "kkkr"},  // the least that is left
                       {"memory.force = head=offload", "rrko"},
                       {"memory.forbid = h.0=recompute", "krrk"},
                       {"memory.recompute = off", "kkkk"},
                       {"memory.force = h.*=recompute,head=keep", "rrrk"},
                       {"memory.force = *=recompute,h.2=keep", "rrkr"}};
    for (const auto& row : table) {
      CAPTURE(row.rules);
      MemoryGame game(memory_job(2), "memory.budget = 850MiB\n" + std::string(row.rules));
      game.begin();
      CHECK(game.letters(0) == row.plan);
      game.rounds(60);
      CHECK(game.plans == 0);
      const bool forces = std::string(row.rules).find("force") != std::string::npos;
      CHECK(game.said_with(ReasonCode::memory_rules).size() == (forces ? 1u : 0u));
    }
    MemoryGame free(memory_job(1), "memory.force = h.1=recompute");
    CHECK(has(free.begin().back().text,
              "rank 0: 1 of 4 blocks recomputed, predicted peak 1000 MiB, "
              "no budget"));
    // A plan from before the rules, as after a restart with other settings.
    MemoryGame changed(memory_job(2), "memory.budget = 850MiB\nmemory.forbid = h.1=recompute");
    changed.state.plan.classes = {cox::test::actions_of("rrkk")};
    changed.active = changed.state.plan;
    changed.rounds(1);
    REQUIRE(changed.said_with(ReasonCode::memory_rules).size() == 1);
    CHECK(has(changed.said_with(ReasonCode::memory_rules)[0].text,
              "block h.1 must not have recompute: memory.forbid has h.1=recompute; all 2 ranks"));
    CHECK(cox::test::letters_of(changed.state.plan.classes[0])[1] == 'k');
    MemoryGame idle(memory_job(1), "memory.budget = 2GiB\nmemory.force = tail=recompute");
    idle.begin();
    idle.rounds(3);
    REQUIRE_FALSE(idle.said_with(ReasonCode::memory_rules).empty());
    CHECK(has(idle.said[0].text, "tail=recompute, which fits no block"));
    MemoryGame absent(memory_job(2), "memory.budget_of_rank = 1:2GiB,7:2GiB");
    absent.begin();
    absent.rounds(3);
    REQUIRE_FALSE(absent.said_with(ReasonCode::memory_rules).empty());
    CHECK(has(absent.said[0].text, "memory.budget_of_rank has rank 7, this job has 2 ranks"));
  }

  TEST_CASE("what the job cannot apply is never planned") {
    cox::JobFacts job = memory_job(2);
    job.capabilities.actions = cox::only(MemoryAction::keep);
    MemoryGame game(job, "memory.budget = 700MiB\nmemory.force = head=recompute");
    game.begin();
    game.rounds(10);
    CHECK(game.letters(0) == "kkkk");
    CHECK(game.plans == 0);
    CHECK_FALSE(game.said_with(ReasonCode::memory_infeasible).empty());
    CHECK_FALSE(game.said_with(ReasonCode::not_capable).empty());
  }

  TEST_CASE("an action that failed rests on all ranks, then is tried again") {
    MemoryGame game(memory_job(3), "memory.budget = 850MiB");
    game.begin();
    REQUIRE(game.letters(0) == "rrkk");
    game.rounds(10);
    game.change = [&game](cox::RankSignal& signal) {
      const bool asked = game.letters(1)[0] == 'r';
      if (signal.rank == RankId(1) && asked) report_failure(signal, 0, MemoryAction::recompute);
    };
    game.round();
    const std::uint64_t failed_at = game.now;
    REQUIRE(game.said_with(ReasonCode::memory_block_failed).size() == 2);
    const std::string told = game.said_with(ReasonCode::memory_block_failed)[0].text;
    CHECK(told ==
          "block h.0 failed under recompute on rank 1 (saves other tensors); no rank uses it there "
          "for 50 rounds");
    game.rounds(5);
    CHECK(game.letters(0)[0] == 'k');
    CHECK(game.predicted(0) <= 850 * kMiB);
    game.change = [](cox::RankSignal&) {};
    while (game.said_with(ReasonCode::memory_block_retried).empty() && game.now < 200) game.round();
    CHECK(game.now >= failed_at + 50);
    CHECK(game.now <= failed_at + 55);
    CHECK(has(game.said.back().text, "; all 3 ranks: 2 of 4"));
    game.rounds(5);
    CHECK(game.letters(2) == "rrkk");
    const int plans = game.plans;
    game.rounds(100);
    CHECK(game.plans == plans);
  }

  TEST_CASE("an action rests from the last word about its failure, while the plan cannot change") {
    MemoryGame game(memory_job(2), "memory.budget = 850MiB");
    game.begin();
    game.state.plan.hold_until = cox::RoundId(40);
    std::uint64_t last_word = 0;
    game.change = [&](cox::RankSignal& signal) {
      if (game.letters(0)[0] != 'r' || last_word >= 45) return;
      report_failure(signal, 0, MemoryAction::recompute);
      last_word = game.now;
    };
    game.rounds(60);
    REQUIRE(last_word > 39);
    CHECK(game.letters(0)[0] == 'k');
    while (game.said_with(ReasonCode::memory_block_retried).empty() && game.now < 200) game.round();
    CHECK(game.now >= last_word + 50);
    CHECK(game.now < last_word + 60);
  }

  TEST_CASE("only observing, it says what it would do and changes nothing") {
    MemoryGame game(memory_job(2), "memory.budget = 700MiB\nmemory.mode = observe");
    game.begin();
    game.rounds(50);
    CHECK(game.plans == 0);
    REQUIRE(game.said.size() == 2);  // predicted, then measured
    CHECK(game.said[0].code == ReasonCode::memory_over_budget);
    CHECK(game.said[1].code == ReasonCode::memory_breach);
    for (const Reason& reason : game.said) {
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
    MemoryGame game(job, "memory.budget = 700MiB");
    game.begin();
    game.rounds(20);
    CHECK(game.plans == 0);
    REQUIRE(game.said.size() == 1);
    CHECK(game.said[0].code == ReasonCode::memory_unknown);
  }
}
