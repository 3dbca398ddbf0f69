// Policy `shares` round by round: reasons, delays, ignored reports.
#include "coordinator/policies/shares/shares.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/share_assignment.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using namespace cox;
using Shares = std::vector<std::uint32_t>;

// Ranks without noise: rank r needs unit_ms[r] for a sample. Plans apply at once.
class SharesRounds {
 public:
  explicit SharesRounds(std::vector<double> unit_ms) : unit_ms_(std::move(unit_ms)) {
    job.incarnation = 1;
    job.world_size = static_cast<std::int32_t>(unit_ms_.size());
    job.global_batch = 16 * unit_ms_.size();
    job.capabilities.shares = true;
    config.shares.mode = PolicyMode::on;
    plan = initial_plan(job);
  }

  RankSignal report(std::size_t rank) const {
    RankSignal s;
    s.rank = RankId(static_cast<std::int32_t>(rank));
    s.round = RoundId(round);
    s.rounds = 1;
    s.plan_applied = plan.id.number;
    const auto units = units_of_shares(job.global_batch, plan.shares, unit_ms_.size());
    s.samples = static_cast<std::uint32_t>(units[rank]);
    s.phase_seconds[static_cast<std::size_t>(Phase::compute)] =
        static_cast<float>(1e-3 * unit_ms_[rank] * s.samples);
    return s;
  }
  std::vector<RankSignal> reports() const {
    std::vector<RankSignal> all;
    for (std::size_t r = 0; r < unit_ms_.size(); ++r) all.push_back(report(r));
    return all;
  }

  PolicyOutput ask(std::vector<RankSignal> reports) {
    StepSignals signals;
    signals.round = RoundId(round++);
    signals.reports = std::move(reports);
    const StepSummary summary = summarize(signals);
    estimates = estimate(std::move(estimates), job, config, plan, signals, summary);
    PolicyOutput output = SharesPolicy().propose(
        {job, config, plan, signals, summary, estimates, {}, {}}, std::move(state));
    state = output.state;
    for (const Reason& finding : output.findings) findings.push_back(finding);
    return output;
  }
  // Plays rounds until a proposal, `rounds` at most. The proposal goes into force.
  std::optional<Proposal> play(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      PolicyOutput output = ask(reports());
      if (output.proposals.empty()) continue;
      plan.shares = output.proposals[0].change.to.shares;
      ++plan.id.number;
      return output.proposals[0];
    }
    return std::nullopt;
  }
  PolicyOutput start() {
    const StepSignals signals;
    const StepSummary summary;
    estimates = after_restart(std::move(estimates), job);
    PolicyOutput output = SharesPolicy().at_start(
        {job, config, plan, signals, summary, estimates, {}, {}}, std::move(state));
    state = output.state;
    return output;
  }
  void set_speed(std::size_t rank, double unit_ms) { unit_ms_[rank] = unit_ms; }

  JobFacts job;
  Config config;
  Plan plan;
  Estimates estimates;
  PolicyState state;
  std::uint64_t round = 1;
  std::vector<Reason> findings;

 private:
  std::vector<double> unit_ms_;
};

Shares shares_in(const Proposal& proposal) {
  return proposal.change.to.shares;
}

// The policy's state.
struct KeptShares {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t worth_rounds = 0;
  std::uint32_t told = 0;
  std::uint64_t told_plan = 0;
  std::vector<std::uint64_t> caps;
  static auto fields(auto& self) {
    return cox::message("KeptShares", cox::field(1, "worth_rounds", self.worth_rounds),
                        cox::field(2, "told", self.told),
                        cox::field(3, "told_plan", self.told_plan),
                        cox::field(4, "caps", self.caps));
  }
};

}  // namespace

TEST_SUITE("policies") {
  TEST_CASE("times of a second and more are told in seconds") {
    SharesRounds rounds({100, 100, 50, 25});
    const auto proposal = rounds.play(11);
    REQUIRE(proposal.has_value());
    const std::string& text = proposal->reason.text;
    CHECK_MESSAGE(text.find("(100 ms each)") != std::string::npos, text);
    CHECK_MESSAGE(text.find("to take 800 ms instead of 1.6 s (") != std::string::npos, text);
  }

  TEST_CASE("shares follow speeds after settle_rounds, and say what they expect") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    CHECK_FALSE(rounds.play(10).has_value());  // one round of warm-up, 8 to settle, 3 for certainty
    const auto proposal = rounds.play(1);
    REQUIRE(proposal.has_value());
    CHECK(shares_in(*proposal) == Shares{8, 8, 16, 32});
    CHECK(proposal->reason.code == ReasonCode::shares_changed);
    CHECK(
        proposal->reason.text ==
        "rank 3 takes 32 samples instead of 16 (0.25 ms each), rank 0 takes 8 samples instead of "
        "16 (1 ms each), rank 1 takes 8 samples instead of 16 (1 ms each); a step is predicted to "
        "take 8 ms instead of 16 ms (50.0 % less), rank 0 is the slowest now");
    CHECK_FALSE(rounds.play(100).has_value());
    REQUIRE(rounds.findings.size() == 1);
    CHECK(rounds.findings[0].code == ReasonCode::shares_kept);
    CHECK(rounds.findings[0].outcome == Outcome::unchanged);
    CHECK(rounds.findings[0].text ==
          "shares stay: other ones would save at most 0.0 % of a step of 8 ms, 4.5 % are worth a "
          "change; the slowest is rank 0 with 8 units (a unit is a sample)");
  }

  TEST_CASE("a change of one rank's speed changes shares within ten rounds") {
    SharesRounds rounds({1, 1, 1, 1});
    REQUIRE_FALSE(rounds.play(50).has_value());
    rounds.set_speed(2, 3);
    const auto proposal = rounds.play(10);
    REQUIRE(proposal.has_value());
    CHECK(shares_in(*proposal)[2] < 8);
    CHECK_FALSE(rounds.play(100).has_value());
    rounds.set_speed(2, 1);
    REQUIRE(rounds.play(10).has_value());
    CHECK(rounds.plan.shares == Shares{16, 16, 16, 16});
  }

  TEST_CASE("what slows all ranks alike moves nothing") {
    SharesRounds rounds({1, 1, 0.9, 0.95});
    rounds.config.shares.smallest_gain_ratio = 0.1;
    REQUIRE_FALSE(rounds.play(50).has_value());
    for (std::size_t r = 0; r < 4; ++r) rounds.set_speed(r, 7);
    rounds.set_speed(2, 0.9 * 7);
    rounds.set_speed(3, 0.95 * 7);
    CHECK_FALSE(rounds.play(100).has_value());
  }

  TEST_CASE("waiting, communication and hosting are no work on samples") {
    SharesRounds rounds({1, 1, 1, 1});
    for (int i = 0; i < 100; ++i) {
      auto reports = rounds.reports();
      reports[1].phase_seconds[static_cast<std::size_t>(Phase::communication)] = 5;
      reports[0].phase_seconds[static_cast<std::size_t>(Phase::host)] = 5;
      reports[2].phase_seconds[static_cast<std::size_t>(Phase::other)] = 5;
      REQUIRE(rounds.ask(std::move(reports)).proposals.empty());
    }
  }

  TEST_CASE("whole micro-batches are what moves where the job has them") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    rounds.job.micro_batch = 4;
    const auto proposal = rounds.play(20);
    REQUIRE(proposal.has_value());
    CHECK(shares_in(*proposal) == Shares{2, 2, 4, 8});
    CHECK(proposal->reason.text.find("rank 3 takes 8 micro-batches instead of 4 (1 ms each)") == 0);
  }

  TEST_CASE("another number of samples a step is what is shared, where the plan has one") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    rounds.plan.step_samples = 128;
    const auto proposal = rounds.play(20);
    REQUIRE(proposal.has_value());
    CHECK(shares_in(*proposal) == Shares{16, 16, 32, 64});
  }

  TEST_CASE("nothing is proposed without a batch, with one rank, or when off") {
    SharesRounds loop({1, 2, 1, 1});
    loop.job.global_batch = 0;
    CHECK_FALSE(loop.play(50).has_value());
    SharesRounds alone({1});
    CHECK_FALSE(alone.play(50).has_value());
    SharesRounds off({1, 4, 1, 1});
    off.config.shares.mode = PolicyMode::off;
    CHECK_FALSE(off.play(50).has_value());
    CHECK(off.state == PolicyState{});
  }

  TEST_CASE("it waits while a plan is in flight, a rank has finished or is not known") {
    SharesRounds rounds({1, 4, 1, 1});
    for (int i = 0; i < 50; ++i) {
      auto reports = rounds.reports();
      if (i < 20) reports[0].set(SignalFlag::finished);
      if (i >= 20) reports.erase(reports.begin());
      REQUIRE(rounds.ask(std::move(reports)).proposals.empty());
    }
    rounds.plan.id.number = 1;  // by another policy
    for (int i = 0; i < 50; ++i) {
      auto reports = rounds.reports();
      for (RankSignal& report : reports) report.plan_applied = 0;
      REQUIRE(rounds.ask(std::move(reports)).proposals.empty());
    }
    CHECK(rounds.play(5).has_value());
  }

  TEST_CASE(
      "reports of rounds under former shares do not count, nor does the first under new ones") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    REQUIRE(rounds.play(20).has_value());
    const std::vector<RankSpeed> before = rounds.estimates.speeds.ranks;
    for (int i = 0; i < 6; ++i) {
      auto reports = rounds.reports();
      for (RankSignal& report : reports) {
        report.plan_applied = i < 5 ? 0 : 1;
        report.phase_seconds[static_cast<std::size_t>(Phase::compute)] *= report.rank.value() + 2.f;
      }
      rounds.ask(std::move(reports));
    }
    const std::vector<RankSpeed>& after = rounds.estimates.speeds.ranks;
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(after[r].level == before[r].level);
      CHECK(after[r].seen == before[r].seen);
    }
  }

  TEST_CASE("a rank without samples keeps its last known speed") {
    SharesRounds rounds({1, 1, 1, 100});
    rounds.config.shares.min_samples = 0;
    REQUIRE(rounds.play(20).has_value());
    REQUIRE(rounds.plan.shares[3] == 0);
    CHECK_FALSE(rounds.play(100).has_value());
    CHECK(rounds.estimates.speeds.ranks[3].level == doctest::Approx(0.1));
  }

  TEST_CASE("the smallest share is kept, so that the speed of every rank stays known") {
    SharesRounds rounds({1, 1, 1, 100});
    REQUIRE(rounds.play(20).has_value());
    CHECK(rounds.plan.shares[3] == 1);
    rounds.set_speed(3, 1);
    REQUIRE(rounds.play(20).has_value());
    CHECK(rounds.plan.shares == Shares{16, 16, 16, 16});
  }

  TEST_CASE("caps that leave no place for the batch are named once, and shares stay") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    rounds.config.shares.max_samples = {{0, 20}, {1, 10}, {2, 20}, {3, 10}};
    CHECK_FALSE(rounds.play(100).has_value());
    REQUIRE(rounds.findings.size() == 1);
    CHECK(rounds.findings[0].code == ReasonCode::shares_unmeetable);
    CHECK(rounds.findings[0].text ==
          "shares stay: the caps of the ranks add up to 60 units, the batch has 64 (rank 1: 10, "
          "rank 3: 10, rank 0: 20, rank 2: 20); raise caps or take a smaller batch (a unit is a "
          "sample)");
  }

  TEST_CASE("a rank above its cap is brought below it, whatever that costs") {
    SharesRounds rounds({1, 1, 1, 1});
    rounds.config.shares.max_samples = {{1, 4}};
    const auto first = rounds.start();
    REQUIRE(first.proposals.size() == 1);
    CHECK(first.proposals[0].reason.code == ReasonCode::shares_limited);
    CHECK(shares_in(first.proposals[0])[1] == 4);
    const auto proposal = rounds.play(20);
    REQUIRE(proposal.has_value());
    CHECK(proposal->reason.code == ReasonCode::shares_limited);
    CHECK(shares_in(*proposal) == Shares{20, 4, 20, 20});
    CHECK_FALSE(rounds.play(100).has_value());
  }

  TEST_CASE("the hint starts shares, and what a restored plan says counts more") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    rounds.config.shares.hint = {{2, 2.0}, {3, 4.0}};
    PolicyOutput output = rounds.start();
    REQUIRE(output.proposals.size() == 1);
    CHECK(output.proposals[0].reason.code == ReasonCode::shares_hint);
    CHECK(shares_in(output.proposals[0]) == Shares{8, 8, 16, 32});
    CHECK(output.proposals[0].reason.text ==
          "shares start by the hint: rank 3 takes 32 samples instead of 16 (speed 4), rank 0 takes "
          "8 samples instead of 16 (speed 1), rank 1 takes 8 samples instead of 16 (speed 1)");
    rounds.plan.shares = {10, 10, 20, 24};
    CHECK(rounds.start().proposals.empty());
    rounds.plan.shares.clear();
    rounds.config.shares.max_samples = {{0, 1}, {1, 1}, {2, 1}, {3, 1}};
    output = rounds.start();
    REQUIRE(output.findings.size() == 1);
    CHECK(output.findings[0].code == ReasonCode::shares_unmeetable);
  }

  TEST_CASE("a restart keeps speeds as a first guess, at another world size nothing") {
    SharesRounds rounds({1, 1, 0.5, 0.25});
    REQUIRE(rounds.play(20).has_value());
    const PolicyState saved = rounds.state;
    const Estimates estimates = rounds.estimates;
    rounds.plan.id.number = 0;
    rounds.start();
    CHECK_FALSE(rounds.play(100).has_value());
    SharesRounds other({1, 4, 1});
    other.state = saved;
    other.estimates = estimates;
    CHECK_FALSE(other.play(10).has_value());
    REQUIRE(other.play(1).has_value());
    CHECK(other.plan.shares == Shares{22, 5, 21});
  }

  TEST_CASE("a state of any numbers is read or refused, never trusted") {
    testing::Random random(5);
    SharesRounds rounds({1, 1, 0.5, 0.25});
    rounds.play(15);
    for (int i = 0; i < 3000; ++i) {
      const auto damaged = [&random](std::string bytes) {
        for (std::uint64_t n = random.below(6); n > 0; --n) {
          bytes[random.below(bytes.size())] = static_cast<char>(random.bits());
        }
        return PolicyState::from_bytes(std::move(bytes));
      };
      SharesRounds again({1, 1, 0.5, 0.25});
      again.plan = rounds.plan;
      again.state = damaged(rounds.state.bytes());
      again.estimates = damaged(encode_state(rounds.estimates)).take_or_fresh<Estimates>();
      for (int round = 0; round < 12; ++round) {
        for (const Proposal& proposal : again.ask(again.reports()).proposals) {
          Plan plan = again.plan;
          plan.shares = shares_in(proposal);
          REQUIRE(validate(plan, again.job).ok());
        }
      }
    }
  }

  TEST_CASE("caps that no rank can have learnt are forgotten") {
    const auto caps_after = [](std::vector<std::uint64_t> caps) {
      KeptShares kept;
      kept.caps = std::move(caps);
      SharesRounds rounds({1, 1});
      rounds.state = PolicyState::from_bytes(encode_state(kept));
      rounds.ask(rounds.reports());
      const Result<KeptShares> after = decode_state<KeptShares>(rounds.state.bytes());
      REQUIRE(after.ok());
      return after->caps;
    };
    CHECK(caps_after({7, 8}) == std::vector<std::uint64_t>{7, 8});
    CHECK(caps_after({7, UINT64_MAX}) == std::vector<std::uint64_t>{0, 0});
  }

  TEST_CASE("units above what a plan can say are rounded in proportion, and nobody loses all") {
    CHECK(shares_of({1, 2, 3}) == Shares{1, 2, 3});
    CHECK(shares_of({1ull << 21, 1ull << 20, 1, 0}) == Shares{1 << 20, 1 << 19, 1, 0});
  }
}
