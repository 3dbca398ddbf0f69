// Shares and budgets agree: predictions scale with the share, and every granted share comes with
// actions that keep it within the budget.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/planner/share_assignment.h"
#include "coordinator/policies/shares/shares.h"
#include "coordinator/testing/random.h"
#include "tests/policies/memory_job.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using cox::testing::Random;

MemoryModel some_model(Random& random, std::size_t blocks, std::uint64_t samples) {
  MemoryModel model;
  model.base_bytes = static_cast<std::int64_t>(random.below(400)) * kMiB;
  model.step_us = 100000;
  model.samples = samples;
  std::int64_t peak = model.base_bytes + static_cast<std::int64_t>(1 + random.below(50 * kMiB));
  std::int64_t added = 50000;
  for (std::size_t kept = 0; kept <= blocks; ++kept) {
    std::string letters = std::string(blocks - kept, 'r') + std::string(kept, 'k');
    model.front.push_back({peak, added, actions_of(letters)});
    peak += static_cast<std::int64_t>(1 + random.below(60 * kMiB));
    added -= static_cast<std::int64_t>(1 + random.below(9000));
  }
  return model;
}

std::uint64_t samples_under(const JobFacts& job, const Plan& plan, std::size_t rank) {
  return units_of_shares(job.global_batch, plan.shares,
                         static_cast<std::size_t>(job.world_size))[rank];
}

const MemoryModel& model_of(const JobFacts& job, std::size_t rank) {
  const MemoryFacts& facts = job.memory;
  return facts.models[facts.model_of_rank.empty() ? 0 : facts.model_of_rank[rank]];
}

// Returns the peak of a rank's step under one plan's actions and another plan's samples.
std::int64_t peak_under(const JobFacts& job, const Plan& actions, const Plan& shares,
                        std::size_t rank) {
  const MemoryModel& model = model_of(job, rank);
  const RankId id(static_cast<std::int32_t>(rank));
  const auto cost = cost_of(model, actions.profiles[profile_of(actions, id).value()]);
  return cost ? peak_with(model, cost->peak_bytes, samples_under(job, shares, rank)) : 0;
}

// Keeps requesting other shares, as large as allowed.
class RandomShares final : public Policy {
 public:
  explicit RandomShares(Random& random) : random_(random) {}
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "random shares"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState) const override {
    PolicyOutput output;
    if (!random_.chance(0.2)) return output;
    ShareProblem problem;
    problem.units = input.job.global_batch;
    problem.ranks.resize(static_cast<std::size_t>(input.job.world_size));
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      problem.ranks[r].seconds_per_unit = 0.05 + random_.uniform();
      if (!input.most_samples.empty()) problem.ranks[r].max_units = input.most_samples[r];
    }
    const auto assignment = assign_shares(problem);
    if (!assignment.ok()) return output;
    SetShares change;
    for (const std::uint64_t units : assignment->units) {
      change.shares.push_back(static_cast<std::uint32_t>(units));
    }
    output.proposals.push_back({change, {}});
    return output;
  }

 private:
  Random& random_;
};

// Ranks follow the model exactly, with the samples of the plan in force.
SimulatedMemoryJob shared_job(JobFacts facts, const std::string& settings) {
  facts.capabilities.shares = true;
  return SimulatedMemoryJob(std::move(facts), settings);
}

void follow_the_model(SimulatedMemoryJob& run) {
  run.real_peak = [&run](std::size_t rank) {
    return peak_under(run.job, run.active, run.active, rank);
  };
  run.change = [&run](RankSignal& signal) {
    const auto rank = static_cast<std::size_t>(signal.rank.value());
    signal.samples = static_cast<std::uint32_t>(samples_under(run.job, run.active, rank));
    const double seconds = 0.005 * run.slowness(rank) * signal.samples;
    signal.phase_seconds[static_cast<std::size_t>(Phase::forward)] = static_cast<float>(seconds);
  };
}

// The course of a job of two ranks. The second is `slowness` times as slow in the middle third of
// 450 rounds. Recompute takes time, too, and all times are noisy.
struct Story {
  int changes = 0;          // changes of shares
  double promised_low = 0;  // for the first change: step time with it over step time without
  double promised_high = 0;
  double measured = 0;
  std::uint64_t last_samples = 0;  // rank 0's
  bool ends_slow = false;
};

Story tell_story(std::uint64_t seed, std::int64_t added_us, const std::string& budget,
                 double slowness) {
  constexpr int kRounds = 450;
  JobFacts job = memory_job(2);
  job.global_batch = 24;
  MemoryModel& model = job.memory.models[0];
  model.samples = 12;
  for (std::size_t p = 0; p < model.front.size(); ++p)
    model.front[p].added_us = added_us * static_cast<std::int64_t>(model.front.size() - 1 - p);
  SimulatedMemoryJob run = shared_job(job, "shares.mode = on\n" + budget);
  run.policies.push_back(std::make_shared<SharesPolicy>());
  follow_the_model(run);
  Random random(seed);
  std::vector<double> steps(kRounds);
  int round = 0;
  run.change = [&](RankSignal& signal) {
    const auto rank = static_cast<std::size_t>(signal.rank.value());
    signal.samples = static_cast<std::uint32_t>(samples_under(run.job, run.active, rank));
    const auto cost = cost_of(model_of(run.job, rank),
                              run.active.profiles[profile_of(run.active, signal.rank).value()]);
    const double factor = 1 + static_cast<double>(cost->added_us) / 1e5;
    const bool is_slow = rank == 1 && round >= kRounds / 3 && round < 2 * kRounds / 3;
    const double noise = 1 + 0.02 * (random.uniform() - 0.5);
    const double seconds =
        (0.002 + 0.005 * factor * signal.samples) * (is_slow ? slowness : 1) * noise;
    signal.phase_seconds[static_cast<std::size_t>(Phase::forward)] = static_cast<float>(seconds);
    steps[static_cast<std::size_t>(round)] =
        std::max(steps[static_cast<std::size_t>(round)], seconds);
  };
  run.begin();
  Story story;
  int changed_at = 0;
  int measured_until = kRounds;
  for (; round < kRounds; ++round) {
    const std::vector<std::uint32_t> before = run.state.plan.shares;
    const Decision decision = run.round();
    story.ends_slow = decision.slow.confirmed > 0;
    if (!decision.plan || decision.plan->shares == before) continue;
    if (story.changes++ == 1) measured_until = round;
    if (story.changes > 1) continue;
    changed_at = round;
    for (const Reason& reason : decision.reasons) {
      if (reason.policy != PolicyKind::shares) continue;
      story.promised_low = reason.forecast.step_ratio_low;
      story.promised_high = reason.forecast.step_ratio_high;
    }
  }
  const auto mean = [&](int from, int to) {
    double sum = 0;
    for (int i = from; i < to; ++i) sum += steps[static_cast<std::size_t>(i)];
    return sum / (to - from);
  };
  if (story.changes > 0)
    story.measured = mean(std::min(changed_at + 20, measured_until - 1), measured_until) /
                     mean(changed_at - 4, changed_at);
  story.last_samples = samples_under(run.job, run.active, 0);
  return story;
}

}  // namespace

TEST_SUITE("policies.memory and shares") {
  TEST_CASE(
      "peaks grow with the samples beyond the base, and the largest share is the last to fit") {
    Random random(3);
    for (int i = 0; i < 20000; ++i) {
      const MemoryModel model =
          some_model(random, 3, 1 + random.below(random.chance(0.5) ? 40 : 1u << 20));
      const std::int64_t peak = model.front[random.below(4)].peak_bytes;
      CHECK(peak_with(model, peak, model.samples) == peak);
      CHECK(peak_with(model, peak, 0) == model.base_bytes);
      const std::uint64_t samples = random.below(1u << 21);
      CHECK(peak_with(model, peak, samples) <= peak_with(model, peak, samples + 1));
      CHECK(peak_with(model, peak, samples) <= peak_with(model, peak + 1, samples));
      const auto bytes = static_cast<std::int64_t>(random.below(4000 * kMiB));
      const std::uint64_t share = largest_share(model, peak, bytes);
      if (share > 0) REQUIRE(peak_with(model, peak, share) <= bytes);
      if (share < kMaxStepSamples) REQUIRE(peak_with(model, peak, share + 1) > bytes);
    }
    MemoryModel whole = plain_model();  // in micro-batches of equal size
    CHECK(peak_with(whole, 700 * kMiB, 1) == 700 * kMiB);
    CHECK(largest_share(whole, 700 * kMiB, 700 * kMiB) == kMaxStepSamples);
    CHECK(largest_share(whole, 700 * kMiB, 699 * kMiB) == 0);
  }

  TEST_CASE(
      "whatever models, shares and budgets: no granted share is predicted to break a budget") {
    Random random(17);
    int changed = 0;
    for (int i = 0; i < 150; ++i) {
      const auto ranks = static_cast<std::int32_t>(2 + random.below(4));
      JobFacts job = memory_job(ranks);
      job.global_batch = static_cast<std::uint64_t>(ranks) * (1 + random.below(40));
      const std::uint64_t even = job.global_batch / static_cast<std::uint64_t>(ranks);
      job.memory.models = {some_model(random, 4, even), some_model(random, 4, even)};
      std::string budgets = "memory.budget_of_rank = ";
      for (std::int32_t r = 0; r < ranks; ++r) {
        job.memory.model_of_rank.push_back(static_cast<std::uint32_t>(random.below(2)));
        const MemoryModel& model = job.memory.models[job.memory.model_of_rank.back()];
        const std::int64_t least = model.front.front().peak_bytes;
        budgets += (r > 0 ? "," : "") + std::to_string(r) + ":" +
                   std::to_string(least + static_cast<std::int64_t>(random.below(300 * kMiB)));
      }
      SimulatedMemoryJob run = shared_job(job, budgets);
      run.policies.push_back(std::make_shared<RandomShares>(random));
      follow_the_model(run);
      run.begin();
      for (int n = 0; n < 100; ++n) {
        run.round();
        for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
          const std::int64_t budget =
              run.config.memory.budget_of_rank.at(static_cast<std::int32_t>(r)).bytes;
          REQUIRE(peak_under(run.job, run.state.plan, run.state.plan, r) <= budget);
          // Actions of a plan may be in force some steps before its shares.
          REQUIRE(peak_under(run.job, run.state.plan, run.active, r) <= budget);
          REQUIRE(run.real_peak(r) <= budget);
        }
      }
      changed += run.plans;
    }
    CHECK(changed > 1000);
    MESSAGE(changed << " plans gave other shares");
  }

  TEST_CASE("one plan gives the fast rank its larger share and the actions that hold it") {
    JobFacts job = memory_job(2);
    job.global_batch = 24;
    job.memory.models[0].samples = 12;
    SimulatedMemoryJob run = shared_job(job, "memory.budget = 855MiB\nshares.mode = on");
    run.policies.push_back(std::make_shared<SharesPolicy>());
    follow_the_model(run);
    run.begin();
    REQUIRE(run.letters(0) == "rrkk");
    run.slowness = [](std::size_t rank) { return rank == 1 ? 2.0 : 1.0; };
    std::int64_t highest = 0;
    for (int n = 0; n < 200; ++n) {
      run.round();
      highest = std::max({highest, run.real_peak(0), run.real_peak(1)});
    }
    CHECK(samples_under(run.job, run.active, 0) == 16);
    CHECK(run.letters(0) == "rrrk");  // 500 + 200 * 16 / 12 = 767, 900 with two blocks kept
    CHECK(run.letters(1) == "kkkk");  // slow, so the lightest that fit: 500 + 500 * 8 / 12 = 833
    CHECK(highest <= 855 * kMiB);
    const std::vector<Reason> told = run.said_with(ReasonCode::memory_over_budget);
    REQUIRE(told.size() == 1);
    const std::vector<Reason> shares = run.said_with(ReasonCode::shares_changed);
    REQUIRE_FALSE(shares.empty());
    CHECK(told[0].round == shares[0].round);  // in the same plan
    CHECK(told[0].text.find("with its share of 16 samples a step") != std::string::npos);
  }

  TEST_CASE(
      "a share that was not measured leaves two percent of the budget free, where a plan does") {
    struct Row {
      const char* budget;
      std::size_t rank;     // the second is slow, and gets the lightest plan that fits
      const char* letters;  // 900 MiB with two blocks kept at 16 samples, 833 with four at 8
    };
    for (const Row& row : {Row{"905MiB", 0, "rrrk"}, Row{"920MiB", 0, "rrkk"},
                           Row{"848MiB", 1, "rkkk"}, Row{"855MiB", 1, "kkkk"}}) {
      CAPTURE(row.budget);
      JobFacts job = memory_job(2);
      job.global_batch = 24;
      job.memory.models[0].samples = 12;
      SimulatedMemoryJob run =
          shared_job(job, "shares.mode = on\nmemory.budget = " + std::string(row.budget));
      run.policies.push_back(std::make_shared<SharesPolicy>());
      follow_the_model(run);
      run.begin();
      run.slowness = [](std::size_t rank) { return rank == 1 ? 2.0 : 1.0; };
      for (int n = 0; n < 200; ++n) run.round();
      CHECK(samples_under(run.job, run.active, 0) == 16);
      CHECK(run.letters(row.rank) == row.letters);
    }
  }

  TEST_CASE("shares are chosen by the time under the plans that they bring, and go back once") {
    int told = 0, held = 0;
    for (const std::int64_t added_us : {0, 5000, 12000}) {
      for (const std::string budget : {"", "memory.budget = 850MiB", "memory.budget = 720MiB"}) {
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
          CAPTURE(added_us);
          CAPTURE(budget);
          CAPTURE(seed);
          const Story story = tell_story(seed, added_us, budget, 2);
          CHECK(story.changes == 2);
          ++told;
          held += story.measured >= story.promised_low && story.measured <= story.promised_high;
          CHECK(story.last_samples == 12);
          CHECK_FALSE(story.ends_slow);
        }
      }
    }
    CHECK(20 * held >= 17 * told);  // intervals of 95 %
  }

  TEST_CASE("shares of equal ranks never change, whatever their plans take") {
    for (const std::int64_t added_us : {0, 5000, 12000}) {
      for (std::uint64_t seed = 1; seed <= 4; ++seed)
        CHECK(tell_story(seed, added_us, "memory.budget = 850MiB", 1).changes == 0);
    }
  }

  TEST_CASE("a share that no actions hold is not granted, and the reason is a cap") {
    JobFacts job = memory_job(2);
    job.global_batch = 24;
    job.memory.models[0].samples = 12;
    SimulatedMemoryJob run = shared_job(job, "memory.budget = 610MiB\nshares.mode = on");
    run.policies.push_back(std::make_shared<SharesPolicy>());
    follow_the_model(run);
    run.begin();
    run.slowness = [](std::size_t rank) { return rank == 1 ? 2.0 : 1.0; };
    run.rounds(200);
    CHECK(samples_under(run.job, run.active, 0) == 13);  // 500 + 100 * 13 / 12 = 608.3
    CHECK(run.real_peak(0) <= 610 * kMiB);
    CHECK_FALSE(run.said_with(ReasonCode::shares_limited).empty());
  }

  TEST_CASE("a rank whose budget cannot be met at its share gets fewer samples") {
    JobFacts job = memory_job(2);
    job.global_batch = 24;
    job.memory.models[0].samples = 12;
    SimulatedMemoryJob run = shared_job(job, "memory.budget_of_rank = 1:580MiB\nshares.mode = on");
    run.policies.push_back(std::make_shared<SharesPolicy>());
    follow_the_model(run);
    run.begin();
    run.rounds(100);
    CHECK(samples_under(run.job, run.active, 1) == 9);  // 500 + 100 * 9 / 12 = 575
    CHECK(run.real_peak(1) <= 580 * kMiB);
    CHECK(run.plans <= 3);
  }

  TEST_CASE("micro-batches of equal size limit no share") {
    JobFacts job = memory_job(2);
    job.global_batch = 24;
    job.micro_batch = 2;
    job.memory.models[0].samples = 12;
    const SimulatedMemoryJob run = shared_job(job, "memory.budget = 610MiB");
    const StepSignals signals;
    const StepSummary summary;
    const Estimates estimates;
    const PolicyOutput output = MemoryPolicy().propose(
        {run.job, run.config, run.state.plan, signals, summary, estimates, run.state.history, {}},
        {});
    CHECK(output.most_samples.empty());
  }
}

}  // namespace cox::test
