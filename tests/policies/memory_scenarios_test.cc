// Policy `memory` over many rounds: measured peaks, hysteresis, stragglers, hostile states.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "tests/policies/memory_job.h"

#include <doctest/doctest.h>

namespace {

using cox::Reason;
using cox::ReasonCode;
using cox::test::kMiB;
using cox::test::memory_job;
using cox::test::SimulatedMemoryJob;
using cox::testing::Random;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns a job with a fine front: 40 points from 600 to 990 MiB.
cox::JobFacts fine_job(std::int32_t ranks) {
  cox::JobFacts job = memory_job(ranks);
  job.blocks.assign(39, "");
  for (std::size_t b = 0; b < job.blocks.size(); ++b) job.blocks[b] = "h." + std::to_string(b);
  cox::MemoryModel& model = job.memory.models[0];
  model.front.clear();
  for (std::size_t p = 0; p < 40; ++p) {
    const auto n = static_cast<std::int64_t>(p);
    const std::string letters = std::string(39 - p, 'r') + std::string(p, 'k');
    model.front.push_back(
        {(600 + 10 * n) * kMiB, 40000 - 1000 * n, cox::test::actions_of(letters)});
  }
  model.kept_bytes.assign(39, 10 * kMiB);
  return job;
}

}  // namespace

TEST_SUITE("policies.memory") {
  TEST_CASE("a measured breach gives a tighter plan at once, on that rank only") {
    SimulatedMemoryJob run(memory_job(3), "memory.budget = 850MiB");
    run.begin();
    REQUIRE(run.letters(1) == "rrkk");
    run.real_peak = [&run](std::size_t rank) {
      return run.predicted(rank) + (rank == 1 ? 60 * kMiB : 0);
    };
    run.rounds(8);
    CHECK(run.letters(0) == "rrkk");
    CHECK(run.letters(1) == "rrrk");
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_breach);
    REQUIRE(told.size() == 1);
    CHECK(told[0].rank == cox::RankId(1));
    CHECK(has(told[0].text,
              "rank 1 peaked at 860 MiB, 10.0 MiB above its budget of 850 MiB (predicted: 800 "
              "MiB); rank 1: 3 of 4 blocks recomputed, predicted peak 760 MiB of 850 MiB"));
    run.rounds(200);
    CHECK(run.plans == 1);
  }

  TEST_CASE("a rank that ran out of memory gets a tighter plan at once, and its reason says so") {
    SimulatedMemoryJob run(memory_job(3), "memory.budget = 850MiB");
    run.begin();
    REQUIRE(run.letters(1) == "rrkk");
    run.rounds(4);
    run.change = [](cox::RankSignal& signal) {
      if (signal.rank == cox::RankId(1)) signal.set(cox::SignalFlag::out_of_memory);
    };
    run.rounds(1);
    run.change = [](cox::RankSignal&) {};
    run.rounds(8);
    CHECK(run.letters(0) == "rrkk");
    CHECK(run.letters(1) == "rrrk");
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_breach);
    REQUIRE(told.size() == 1);
    CHECK(told[0].rank == cox::RankId(1));
    CHECK(has(told[0].text, "rank 1 ran out of memory under a plan of 800 MiB (budget: 850 MiB)"));
    run.rounds(200);
    CHECK(run.plans == 1);
  }

  TEST_CASE("a breach that depends on the plan never makes it go back and forth") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    // Two kept blocks cost more than predicted and three recomputed ones less, which tempts the
    // policy to go back.
    run.real_peak = [&run](std::size_t rank) {
      return run.predicted(rank) + (run.letters(rank) == "rrkk" ? 100 : -80) * kMiB;
    };
    run.rounds(900);
    CHECK(run.letters(0) == "rrrk");
    CHECK(run.plans == 1);
    run.rounds(300);  // then the breach is forgotten, and a lighter plan fits
    CHECK(run.plans == 2);
    CHECK(run.letters(0) == "rkkk");
  }

  TEST_CASE("a plan that needs less than predicted makes room for a lighter one, in calm steps") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    run.real_peak = [&run](std::size_t rank) { return run.predicted(rank) - 120 * kMiB; };
    run.rounds(400);
    CHECK(run.letters(0) == "rkkk");  // 900 predicted, 780 real
    CHECK(run.plans == 1);
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_room);
    REQUIRE(told.size() == 1);
    CHECK(has(told[0].text, "a lighter plan saves 3.7 % of the step"));
    CHECK(told[0].round >= cox::RoundId(18));
  }

  TEST_CASE("where a step in thirty needs more bytes than the others, plans leave room for it") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    run.real_peak = [&run](std::size_t rank) {
      return run.predicted(rank) - (run.now % 30 == 5 ? 0 : 200 * kMiB);
    };
    run.rounds(600);
    CHECK(run.plans == 0);
    CHECK(run.letters(0) == "rrkk");
  }

  TEST_CASE("a lighter plan that would only just fit is left alone") {
    for (const std::int64_t spare : {55, 70}) {
      CAPTURE(spare);
      SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
      run.begin();
      run.real_peak = [&](std::size_t rank) { return run.predicted(rank) - spare * kMiB; };
      run.rounds(400);
      CHECK(run.plans == (spare == 70 ? 1 : 0));  // 900 - 55 > 0.98 * 850 > 900 - 70
    }
  }

  TEST_CASE("once keeping all broke a mode's room, the mode's part of it is the budget") {
    cox::JobFacts job = fine_job(2);
    job.memory.limit_bytes.assign(2, 1180 * kMiB);
    SimulatedMemoryJob run(job, "memory.budget = conservative");  // 1003 MiB, or 902
    run.begin();
    CHECK(run.predicted(0) == 990 * kMiB);
    run.real_peak = [&run](std::size_t rank) {
      const bool keeps_all = run.predicted(rank) == 990 * kMiB;
      return run.predicted(rank) + (keeps_all ? 30 : -10) * kMiB;
    };
    run.rounds(500);
    CHECK(run.predicted(0) <= 912 * kMiB);
    CHECK(run.predicted(0) >= 860 * kMiB);
  }

  TEST_CASE(
      "a saving of less than a hundredth of the step is not worth a change, and that is said") {
    cox::JobFacts job = memory_job(2);
    cox::MemoryModel& model = job.memory.models[0];
    for (cox::MemoryPoint& point : model.front) point.added_us /= 16;
    SimulatedMemoryJob run(job, "memory.budget = 850MiB");
    run.begin();
    run.real_peak = [&run](std::size_t rank) { return run.predicted(rank) - 120 * kMiB; };
    run.rounds(100);
    CHECK(run.plans == 0);
    CHECK(run.letters(0) == "rrkk");
  }

  TEST_CASE("noise in the measured peaks moves no plan that keeps its distance") {
    SimulatedMemoryJob run(fine_job(4), "memory.budget = 805MiB");
    run.begin();
    Random random(7);
    run.real_peak = [&](std::size_t rank) {
      return run.predicted(rank) + static_cast<std::int64_t>(4e6 * (2 * random.uniform() - 1));
    };
    run.rounds(2000);
    CHECK(run.plans == 0);
  }

  TEST_CASE("within a few rounds no rank peaks above its budget, whatever the error") {
    Random random(21);
    for (int i = 0; i < 60; ++i) {
      std::vector<double> factor, offset;
      std::string budgets;
      for (int r = 0; r < 4; ++r) {
        factor.push_back(0.9 + 0.25 * random.uniform());
        offset.push_back(4e7 * (random.uniform() - 0.5));
        budgets += (r > 0 ? "," : "") + std::to_string(r) + ":" +
                   std::to_string(780 + random.below(250)) + "MiB";
      }
      SimulatedMemoryJob run(fine_job(4), "memory.budget_of_rank = " + budgets);
      run.begin();
      run.real_peak = [&](std::size_t r) {
        const double peak = static_cast<double>(run.predicted(r)) * factor[r] + offset[r];
        return static_cast<std::int64_t>(peak + 1e5 * random.uniform());
      };
      run.rounds(1500);
      const int plans = run.plans;
      CHECK(plans < 40);
      for (int n = 0; n < 60; ++n) {
        run.round();
        for (std::size_t r = 0; r < 4; ++r) {
          const std::int64_t budget =
              run.config.memory.budget_of_rank.at(static_cast<std::int32_t>(r)).bytes;
          REQUIRE(run.real_peak(r) <= budget + kMiB / 5);
        }
      }
    }
  }

  TEST_CASE("a straggler gets the lightest plan that fits, where a mode leaves a choice") {
    cox::JobFacts job = fine_job(4);
    job.memory.limit_bytes.assign(4, 1100 * kMiB);
    SimulatedMemoryJob run(job, "memory.budget = balanced");  // 701 MiB; conservative: 841
    run.begin();
    const std::string balanced = run.letters(2);
    run.rounds(20);
    CHECK(run.plans == 0);
    run.slowness = [](std::size_t rank) { return rank == 2 ? 1.3 : 1.0; };
    run.rounds(40);
    CHECK(run.letters(0) == balanced);
    const auto recomputed = [](const std::string& s) {
      return std::count(s.begin(), s.end(), 'r');
    };
    CHECK(recomputed(run.letters(2)) == 15);  // 840 MiB
    CHECK(recomputed(balanced) == 29);        // 700 MiB
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_straggler);
    REQUIRE(told.size() == 1);
    CHECK(told[0].rank == cox::RankId(2));
    CHECK(has(told[0].text, "slower than the others, so it gets the lightest plan that fits"));
    const int plans = run.plans;
    run.rounds(300);
    CHECK(run.plans == plans);
    run.slowness = [](std::size_t) { return 1.0; };
    run.rounds(60);
    CHECK(run.letters(2) == balanced);
  }

  TEST_CASE("a budget in bytes holds for a straggler too") {
    SimulatedMemoryJob run(fine_job(4), "memory.budget = 705MiB");
    run.begin();
    const std::string plan = run.letters(2);
    run.slowness = [](std::size_t rank) { return rank == 2 ? 1.5 : 1.0; };
    run.rounds(100);
    CHECK(run.plans == 0);
    CHECK(run.letters(2) == plan);
  }

  TEST_CASE("a restored state goes on with what was learnt, and another world starts anew") {
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    run.real_peak = [&run](std::size_t rank) { return run.predicted(rank) + 60 * kMiB; };
    run.rounds(30);
    REQUIRE(run.letters(0) == "rrrk");
    SimulatedMemoryJob again(memory_job(2), "memory.budget = 850MiB");
    again.state.policies = run.state.policies;
    again.begin();
    CHECK(again.letters(0) == "rrrk");
    SimulatedMemoryJob calm(memory_job(2), "memory.budget = 850MiB");
    calm.begin();
    calm.rounds(10);
    SimulatedMemoryJob restarted(memory_job(2), "memory.budget = 850MiB");
    restarted.state.policies = calm.state.policies;
    restarted.begin();
    restarted.real_peak = [&restarted](std::size_t) {  // the peak of starting up
      return restarted.now == 1 ? 2000 * kMiB : 800 * kMiB;
    };
    restarted.rounds(20);
    CHECK(restarted.plans == 0);
    SimulatedMemoryJob larger(memory_job(3), "memory.budget = 850MiB");
    larger.state.policies = run.state.policies;
    larger.begin();
    CHECK(larger.letters(0) == "rrkk");
    SimulatedMemoryJob other(memory_job(2), "memory.budget = 950MiB");
    other.state.policies = run.state.policies;
    other.begin();
    CHECK(other.letters(0) == "rkkk");
  }

  TEST_CASE("states of any content are taken or started anew, never trusted") {
    Random random(31);
    SimulatedMemoryJob source(memory_job(3), "memory.budget = 850MiB");
    source.begin();
    source.rounds(5);
    const std::string whole = cox::state_of(source.state, "memory").bytes();
    REQUIRE(whole.size() > 10);
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = whole;
      if (random.chance(0.3)) bytes.resize(random.below(bytes.size()));
      for (auto n = random.below(4); n > 0 && !bytes.empty(); --n) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      }
      SimulatedMemoryJob run(memory_job(3), "memory.budget = 850MiB");
      cox::state_of(run.state, "memory") = cox::PolicyState::from_bytes(bytes);
      run.begin();
      run.rounds(3);
      REQUIRE(cox::validate(run.state.plan, run.job).ok());
    }
  }

  TEST_CASE("damaged words about failures are ignored") {
    Random random(41);
    SimulatedMemoryJob run(memory_job(2), "memory.budget = 850MiB");
    run.begin();
    run.change = [&random](cox::RankSignal& signal) {
      cox::BlockFailure failure;
      failure.block = cox::BlockId(static_cast<std::uint16_t>(4 + random.below(500)));
      failure.blocks = static_cast<std::uint16_t>(random.below(600));
      failure.action = static_cast<cox::MemoryAction>(random.below(7));
      failure.what.fill('x');
      signal.fragment = cox::make_fragment(failure);
      if (random.chance(0.3)) signal.fragment.size = static_cast<std::uint16_t>(random.below(61));
    };
    run.rounds(500);
    CHECK(run.plans == 0);
    CHECK(run.said_with(ReasonCode::memory_block_failed).empty());
  }
}
