#include "coordinator/policies/memory_report.h"

#include "memory_game.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::test;

namespace {

std::vector<std::int64_t> in_mib(std::vector<std::int64_t> bytes) {
  for (std::int64_t& b : bytes) b /= kMiB;
  return bytes;
}

std::vector<std::int64_t> budgets_of(const MemoryGame& game) {
  return in_mib(memory_budgets(game.job, game.config, game.state));
}

}  // namespace

TEST_SUITE("memory report") {
  TEST_CASE("without a plan of memory, or without facts, there are no budgets") {
    CHECK(budgets_of(MemoryGame(memory_job(2), "")).empty());
    CHECK(
        budgets_of(MemoryGame(memory_job(2), "memory.budget = 700MiB\nmemory.mode = off")).empty());
    JobFacts unmeasured = memory_job(2);
    unmeasured.memory = {};
    CHECK(budgets_of(MemoryGame(unmeasured, "memory.budget = 700MiB")).empty());
  }

  TEST_CASE("every rank has its own budget, and 0 where nothing limits it") {
    const MemoryGame bytes(memory_job(3),
                           "memory.budget = 700MiB\nmemory.budget_of_rank = 1:900MiB");
    CHECK(budgets_of(bytes) == std::vector<std::int64_t>{700, 900, 700});
    CHECK(budgets_of(MemoryGame(memory_job(2), "memory.mode = on")) ==
          std::vector<std::int64_t>{0, 0});
  }

  TEST_CASE("a part of a limit is known once the limit is, from the start or from reports") {
    JobFacts job = memory_job(2);
    job.memory.limit_bytes = {2000 * kMiB, 0};
    MemoryGame game(job, "memory.budget = 0.5");
    CHECK(budgets_of(game) == std::vector<std::int64_t>{1000, 0});
  }

  TEST_CASE("the budget is the one that the policy has learnt to decide by") {
    JobFacts job = memory_job(2);
    job.memory.limit_bytes = {1200 * kMiB, 1200 * kMiB};
    MemoryGame game(job, "memory.budget = conservative");
    CHECK(budgets_of(game) == std::vector<std::int64_t>{1020, 1020});  // keeping all fits 85 %
    game.real_peak = [&game](std::size_t rank) {
      return game.predicted(rank) + (rank == 1 ? 100 * kMiB : 0);
    };
    game.begin();
    game.rounds(6);
    CHECK(budgets_of(game) == std::vector<std::int64_t>{1020, 918});  // on rank 1 it does not
  }
}
