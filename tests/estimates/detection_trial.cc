#include "tests/estimates/detection_trial.h"

#include <algorithm>

#include "coordinator/estimates/slow_hosts.h"
#include "tests/estimates/published_rules.h"

namespace cox::test {
namespace {

using testing::SimulatedJob;
using testing::SlowTruth;
using testing::StragglerScenario;

const SlowTruth* truth_of(const StragglerScenario& scenario, RankId rank) {
  const auto found = std::ranges::find(scenario.slow, rank, &SlowTruth::rank);
  return found == scenario.slow.end() ? nullptr : &*found;
}

bool is_listed(const std::vector<NamedRank>& named, RankId rank) {
  return std::ranges::find(named, rank, &NamedRank::rank) != named.end();
}

struct Progress {
  std::vector<NamedRank> named;  // after the newest round
  std::vector<RankId> found;
};

void judge_new_name(const StragglerScenario& scenario, const NamedRank& name, std::uint64_t round,
                    Progress& progress, Score& score) {
  const SlowTruth* const truth = truth_of(scenario, name.rank);
  if (truth == nullptr || round < truth->from) {
    ++score.wrong;
    return;
  }
  if (truth->slowdown_ratio < kWanted) return;
  if (std::ranges::find(progress.found, name.rank) != progress.found.end()) return;
  progress.found.push_back(name.rank);
  ++score.found;
  score.right_phase += !truth->phase || *truth->phase == name.phase;
  score.delay += static_cast<std::int64_t>(round - truth->from) + 1;
}

template <class AfterRound>
Score play_rounds(const StragglerScenario& scenario, Rule& rule, const AfterRound& after_round) {
  SimulatedJob job(scenario.job, {}, {});
  Score score;
  score.scenarios = 1;
  Progress progress;
  for (const SlowTruth& truth : scenario.slow) score.wanted += truth.slowdown_ratio >= kWanted;
  for (std::uint64_t i = 0; i < scenario.rounds; ++i) {
    const StepSignals signals = job.signals();
    const SeenRound seen = see_round(signals);
    std::vector<NamedRank> named = rule.see(signals, seen.summary, seen.timings);
    for (const NamedRank& name : named) {
      if (is_listed(progress.named, name.rank)) continue;
      judge_new_name(scenario, name, signals.round.value(), progress, score);
    }
    progress.named = std::move(named);
    score.rank_rounds += scenario.job.ranks;
    after_round(signals.round.value());
    job.skip();
  }
  return score;
}

constexpr std::uint64_t kOnset = 60;

struct Wait {
  double rounds = 0;
  std::int64_t wrong = 0;
  std::int64_t rank_rounds = 0;
};

// The job's only slowdown begins in round kOnset.
Wait wait_for_name(const testing::Scenario& scenario, Rule& rule, int limit) {
  const RankId slow = scenario.slowdowns[0].rank;
  SimulatedJob job(scenario, {}, {});
  Wait wait;
  std::vector<NamedRank> before;
  for (std::uint64_t round = 1; round < kOnset + static_cast<std::uint64_t>(limit); ++round) {
    const StepSignals signals = job.signals();
    const SeenRound seen = see_round(signals);
    const auto named = rule.see(signals, seen.summary, seen.timings);
    job.skip();
    wait.rank_rounds += scenario.ranks;
    for (const NamedRank& name : named) {
      const bool is_right = name.rank == slow && round >= kOnset;
      wait.wrong += !is_right && !is_listed(before, name.rank);
    }
    before = named;
    if (round < kOnset) continue;
    wait.rounds = static_cast<double>(round - kOnset + 1);
    if (is_listed(named, slow)) return wait;
  }
  wait.rounds = limit;
  return wait;
}

bool is_steady(const StragglerScenario& scenario) {
  return scenario.kind == testing::StragglerKind::step ||
         scenario.kind == testing::StragglerKind::several;
}

void judge_sizes(const StragglerScenario& scenario, const Estimates& estimates,
                 EstimatesScore& score) {
  if (!is_steady(scenario)) return;
  for (const SlowRank& slow : estimates.slowness.slow) {
    const SlowTruth* const truth = truth_of(scenario, slow.rank);
    if (truth == nullptr) continue;
    ++score.sizes;
    score.sizes_covered +=
        slow.slowdown_low <= truth->slowdown_ratio && truth->slowdown_ratio <= slow.slowdown_high;
  }
}

}  // namespace

std::vector<NamedRank> EstimatesRule::see(const StepSignals& signals, const StepSummary& summary,
                                          const Timings& timings) {
  estimates_ =
      estimate(std::move(estimates_), job_, config_, initial_plan(job_), signals, summary, timings);
  std::vector<NamedRank> named;
  for (const SlowRank& slow : estimates_.slowness.slow) named.push_back({slow.rank, slow.phase()});
  return named;
}

void Score::add(const Score& other) {
  scenarios += other.scenarios;
  rank_rounds += other.rank_rounds;
  wanted += other.wanted;
  found += other.found;
  wrong += other.wrong;
  right_phase += other.right_phase;
  delay += other.delay;
}

double Score::f1() const {
  const auto missed = static_cast<double>(wanted - found);
  const auto right = static_cast<double>(found);
  return wanted + wrong == 0 ? 1 : 2 * right / (2 * right + missed + static_cast<double>(wrong));
}

double Score::false_alarms_per_rank_round() const {
  return static_cast<double>(wrong) / static_cast<double>(std::max<std::int64_t>(rank_rounds, 1));
}

Score play(const StragglerScenario& scenario, Rule& rule) {
  return play_rounds(scenario, rule, [](std::uint64_t) {});
}

void EstimatesScore::add(const EstimatesScore& other) {
  ranks.add(other.ranks);
  slow_jobs += other.slow_jobs;
  slow_jobs_found += other.slow_jobs_found;
  slow_jobs_wrong += other.slow_jobs_wrong;
  slow_hosts += other.slow_hosts;
  slow_hosts_found += other.slow_hosts_found;
  slow_hosts_wrong += other.slow_hosts_wrong;
  sizes += other.sizes;
  sizes_covered += other.sizes_covered;
}

EstimatesScore play_to_estimates(const StragglerScenario& scenario) {
  EstimatesRule rule(SimulatedJob(scenario.job, {}, {}).job());
  EstimatesScore score;
  bool job_was_slow = false;
  bool host_was_slow = false;
  score.ranks = play_rounds(scenario, rule, [&](std::uint64_t round) {
    const bool job_may_be = scenario.job_slow_from > 0 && round >= scenario.job_slow_from;
    const bool job_is = rule.estimates().slowness.pace.slow.has_value();
    if (job_is && !job_was_slow) ++(job_may_be ? score.slow_jobs_found : score.slow_jobs_wrong);
    job_was_slow = job_was_slow || job_is;
    if (host_was_slow) return;
    for (const SlowHost& host : slow_hosts(rule.estimates().slowness, rule.job().node_of_rank)) {
      ++(host.node == scenario.slow_host ? score.slow_hosts_found : score.slow_hosts_wrong);
      host_was_slow = true;
    }
  });
  score.slow_jobs = scenario.job_slow_from > 0;
  score.slow_hosts = scenario.slow_host.value() >= 0;
  judge_sizes(scenario, rule.estimates(), score);
  return score;
}

Delay delay_of(std::optional<PublishedRule> published, double extra_ratio, std::int32_t ranks,
               int runs, int limit) {
  std::vector<double> delays;
  Delay delay;
  double wrong = 0;
  double rank_rounds = 0;
  for (int run = 0; run < runs; ++run) {
    testing::Scenario scenario;
    scenario.seed = 100 + static_cast<std::uint64_t>(run);
    scenario.ranks = ranks;
    scenario.blocks = 1;
    scenario.phase_noise = 0;
    scenario.slowdowns = {{RankId(run % ranks), std::nullopt, extra_ratio, kOnset}};
    const auto job = SimulatedJob(scenario, {}, {}).job();
    const std::unique_ptr<Rule> rule =
        published ? make_rule(*published) : std::make_unique<EstimatesRule>(job);
    const Wait wait = wait_for_name(scenario, *rule, limit);
    delays.push_back(wait.rounds);
    wrong += static_cast<double>(wait.wrong);
    rank_rounds += static_cast<double>(wait.rank_rounds);
    delay.mean += delays.back() / runs;
    delay.found += delays.back() < limit ? 1.0 / runs : 0;
  }
  delay.false_alarms_per_million = 1e6 * wrong / rank_rounds;
  std::ranges::sort(delays);
  delay.p99 = delays[static_cast<std::size_t>(0.99 * (runs - 1))];
  return delay;
}

}  // namespace cox::test
