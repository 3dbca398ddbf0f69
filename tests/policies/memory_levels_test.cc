// Policy `memory` with levels of recompute: choices, resting actions, reasons.
#include <string>
#include <vector>

#include "coordinator/policies/memory/memory.h"
#include "tests/policies/memory_job.h"

#include <doctest/doctest.h>

namespace {

using cox::ActionSet;
using cox::MemoryAction;
using cox::RankId;
using cox::Reason;
using cox::ReasonCode;
using cox::test::kMiB;
using cox::test::SimulatedMemoryJob;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

cox::JobFacts leveled_job(std::int32_t ranks) {
  cox::JobFacts job = cox::test::memory_job(ranks);
  job.memory.models = {cox::test::leveled_model()};
  return job;
}

void report_failure(cox::RankSignal& signal, std::uint16_t block, MemoryAction action) {
  cox::BlockFailure failure;
  failure.block = cox::BlockId(block);
  failure.blocks = 4;
  failure.action = action;
  std::string("differs").copy(failure.what.data(), failure.what.size());
  signal.fragment = cox::make_fragment(failure);
}

}  // namespace

TEST_SUITE("policies.memory.levels") {
  TEST_CASE("the fastest plan within the budget has levels, and the reason counts them") {
    struct {
      const char* budget;
      const char* plan;
      const char* says;
    } const table[] = {
        {"850MiB", "222k", "3 of 4 blocks recomputed (3 at level 2 of 7), predicted peak 850 MiB"},
        {"750MiB", "r222", "4 of 4 blocks recomputed (3 at level 2 of 7, 1 in full), predicted"},
        {"600MiB", "rrrr", "4 of 4 blocks recomputed, predicted peak 600 MiB"}};
    for (const auto& row : table) {
      SimulatedMemoryJob run(leveled_job(2), std::string("memory.budget = ") + row.budget);
      const std::vector<Reason> said = run.begin();
      CHECK(run.letters(0) == row.plan);
      REQUIRE_FALSE(said.empty());
      CHECK_MESSAGE(has(said[0].text, row.says), said[0].text);
    }
  }

  TEST_CASE("rules for recompute mean every level of it") {
    struct {
      const char* settings;
      const char* plan;
    } const table[] = {
        {"memory.budget = 850MiB\nmemory.forbid = h.0=recompute", "k222"},
        {"memory.budget = 950MiB\nmemory.recompute = off", "kkkk"},
        {"memory.budget = 850MiB\nmemory.force = h.0=recompute", "222k"},
        {"memory.force = head=recompute", "kkkr"},  // full recompute: no level was measured
        {"memory.budget = 700MiB\nmemory.force = *=keep", "kkkk"}};
    for (const auto& row : table) {
      CAPTURE(row.settings);
      SimulatedMemoryJob run(leveled_job(1), row.settings);
      run.begin();
      CHECK(run.letters(0) == row.plan);
    }
  }

  TEST_CASE("a level that the job cannot apply is never planned, and other recompute still is") {
    cox::JobFacts job = leveled_job(2);
    const ActionSet no_levels =
        static_cast<ActionSet>(cox::only(MemoryAction::keep) | cox::only(MemoryAction::recompute));
    job.capabilities.actions = no_levels;
    for (const std::string budget : {"600MiB", "700MiB", "850MiB", "900MiB", "1000MiB"}) {
      SimulatedMemoryJob run(job, "memory.budget = " + budget);
      run.begin();
      run.rounds(30);
      CHECK(run.letters(0).find_first_not_of("kr") == std::string::npos);
      CHECK(cox::validate(run.active, job).ok());
      if (budget == "600MiB") CHECK(run.letters(0) == "rrrr");
    }
  }

  TEST_CASE(
      "recompute that failed at a level rests at all levels and in full, then is tried again") {
    SimulatedMemoryJob run(leveled_job(3), "memory.budget = 850MiB");
    run.begin();
    REQUIRE(run.letters(0) == "222k");
    run.rounds(10);
    run.change = [&run](cox::RankSignal& signal) {
      const bool asked = run.letters(1)[0] == '2';
      if (signal.rank == RankId(1) && asked) report_failure(signal, 0, cox::recompute_level(2));
    };
    run.round();
    const std::vector<Reason> failed = run.said_with(ReasonCode::memory_block_failed);
    REQUIRE(failed.size() == 2);
    CHECK(failed[0].text ==
          "block h.0 failed under recompute 2 of 7 on rank 1 (differs); no rank uses any recompute "
          "there for 50 rounds");
    CHECK_MESSAGE(
        has(failed[1].text, "block h.0 failed under recompute, which is not planned there for now"),
        failed[1].text);
    run.rounds(5);
    CHECK(run.letters(0) == "k222");
    CHECK(run.predicted(0) <= 850 * kMiB);
    run.change = [](cox::RankSignal&) {};
    run.rounds(70);
    REQUIRE(run.said_with(ReasonCode::memory_block_retried).size() >= 1);
    CHECK(run.letters(2) == "222k");
  }

  TEST_CASE("a straggler gets the lightest recompute that fits, where a mode leaves a choice") {
    cox::JobFacts job = leveled_job(4);
    job.memory.limit_bytes.assign(4, 1120 * kMiB);  // balanced: 714 MiB, conservative: 856 MiB
    SimulatedMemoryJob run(job, "memory.budget = balanced");
    run.begin();
    REQUIRE(run.letters(2) == "rr22");
    run.slowness = [](std::size_t rank) { return rank == 2 ? 1.3 : 1.0; };
    run.rounds(60);
    CHECK(run.letters(0) == "rr22");
    CHECK(run.letters(2) == "222k");
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_straggler);
    REQUIRE(told.size() == 1);
    CHECK_MESSAGE(has(told[0].text, "3 of 4 blocks recomputed (3 at level 2 of 7)"), told[0].text);
  }
}
