// Plays straggler scenarios (coordinator/testing) to a rule that names slow ranks, and counts right
// and wrong names. The test of the estimates and the benchmark S1 use it. The estimates are one
// rule; published_rules.h has others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/estimates/estimates.h"
#include "coordinator/testing/straggler_scenario.h"

namespace cox::test {

struct NamedRank {
  RankId rank{};
  Phase phase = Phase::other;
};

// Rule names the ranks that it considers slow after each round. Gets the rounds of one job in
// order.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::vector<NamedRank> see(const StepSignals& signals, const StepSummary& summary,
                                     const Timings& timings) = 0;
};

// The estimates as a rule: confirmed ranks.
class EstimatesRule final : public Rule {
 public:
  explicit EstimatesRule(JobFacts job) : job_(std::move(job)) {}
  std::vector<NamedRank> see(const StepSignals& signals, const StepSummary& summary,
                             const Timings& timings) override;
  const Estimates& estimates() const { return estimates_; }
  const JobFacts& job() const { return job_; }

 private:
  JobFacts job_;
  Config config_;
  Estimates estimates_;
};

// Score adds up over scenarios. Ranks with a slowdown of at least `kWanted` are wanted. Naming a
// rank with a smaller slowdown is neither right nor wrong.
inline constexpr double kWanted = 1.10;

struct Score {
  std::int64_t scenarios = 0;
  std::int64_t rank_rounds = 0;
  std::int64_t wanted = 0;
  std::int64_t found = 0;
  std::int64_t wrong = 0;        // times that a rank was named without being slow, or too early
  std::int64_t right_phase = 0;  // part of `found`
  std::int64_t delay = 0;        // rounds from the slowdown to the name, sum over `found`

  void add(const Score& other);
  double f1() const;
  double false_alarms_per_rank_round() const;
};

// Plays the scenario to the rule.
Score play(const testing::StragglerScenario& scenario, Rule& rule);

// Plays the scenario to the estimates. Also counts whether the slow job and the slow host were
// named, and whether the final interval of a named rank's size holds the true size.
struct EstimatesScore {
  Score ranks;
  std::int64_t slow_jobs = 0, slow_jobs_found = 0, slow_jobs_wrong = 0;
  std::int64_t slow_hosts = 0, slow_hosts_found = 0, slow_hosts_wrong = 0;
  std::int64_t sizes = 0, sizes_covered = 0;

  void add(const EstimatesScore& other);
};
EstimatesScore play_to_estimates(const testing::StragglerScenario& scenario);

// Rounds until a slowdown is named that begins after 60 quiet rounds, over `runs` seeds. Jobs have
// `ranks` ranks with normal noise of 3 % a step. A run without the name within `limit` rounds
// counts as `limit`.
struct Delay {
  double mean = 0;
  double p99 = 0;
  double found = 0;                     // fraction of the runs
  double false_alarms_per_million = 0;  // other ranks named, or this one early, in rank-rounds
};
enum class PublishedRule : int;  // published_rules.h
// Without a rule: the delay of the estimates.
Delay delay_of(std::optional<PublishedRule> rule, double extra_ratio, std::int32_t ranks, int runs,
               int limit);

}  // namespace cox::test
