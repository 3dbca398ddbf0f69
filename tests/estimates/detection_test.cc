// The promises of the estimates, on a sample of the scenarios of the benchmark S1.
#include <array>

#include "tests/estimates/detection_trial.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::testing;
using namespace cox::test;

TEST_SUITE("core") {
  TEST_CASE(
      "1,000 scenarios: slow ranks, hosts and jobs are named, in the right phase, no others") {
    std::array<EstimatesScore, kStragglerKinds> kinds;
    EstimatesScore all;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
      const StragglerScenario scenario = straggler_scenario(seed);
      const EstimatesScore score = play_to_estimates(scenario);
      kinds[static_cast<std::size_t>(scenario.kind)].add(score);
      all.add(score);
    }
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const Score& s = kinds[k].ranks;
      MESSAGE(to_string(static_cast<StragglerKind>(k))
              << ": wanted " << s.wanted << ", found " << s.found << ", wrong " << s.wrong
              << ", right phase " << s.right_phase << ", delay "
              << static_cast<double>(s.delay) /
                     static_cast<double>(std::max<std::int64_t>(s.found, 1))
              << ", rank-rounds " << s.rank_rounds << ", jobs " << kinds[k].slow_jobs_found
              << " of " << kinds[k].slow_jobs << " wrong " << kinds[k].slow_jobs_wrong << ", hosts "
              << kinds[k].slow_hosts_found << " of " << kinds[k].slow_hosts << " wrong "
              << kinds[k].slow_hosts_wrong << ", sizes " << kinds[k].sizes_covered << " of "
              << kinds[k].sizes);
    }
    MESSAGE("F1 " << all.ranks.f1() << ", false alarms per rank-step "
                  << all.ranks.false_alarms_per_rank_round());
    CHECK(all.ranks.f1() >= 0.995);
    const Score& bursts = kinds[static_cast<std::size_t>(StragglerKind::bursts)].ranks;
    CHECK(bursts.false_alarms_per_rank_round() <= 2e-5);
    CHECK(all.ranks.false_alarms_per_rank_round() <= 1e-6);
    CHECK(all.ranks.right_phase * 100 >= all.ranks.found * 99);
  }
}
