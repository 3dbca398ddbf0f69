// D2: the cost of an exact share assignment for 1,024 ranks and 16,384 units, and its gain over the
// even split.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "coordinator/planner/share_assignment.h"
#include "coordinator/testing/random.h"
#include "tests/bench/line.h"

namespace {

using namespace cox;
using bench::Line;
using testing::Random;

constexpr std::size_t kRanks = 1024;
constexpr std::uint64_t kUnits = 16384;

// Measures this thread's CPU time: the goal is for one core, and the machine may be busy.
double cpu_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct Kind {
  const char* name;
  bool is_even;      // all ranks equally fast, but for one in sixteen
  bool has_limits;   // fixed times, minima and caps
  bool has_present;  // with a present assignment to stay near
};

ShareProblem problem_of(const Kind& kind, std::uint64_t seed) {
  Random random(seed);
  ShareProblem problem;
  problem.units = kUnits;
  for (std::size_t r = 0; r < kRanks; ++r) {
    RankCost rank{0, 0.01 * (1 + 2 * random.uniform()), 1};
    if (kind.is_even) rank.seconds_per_unit = 0.01 * (random.chance(1.0 / 16) ? 1.5 : 1.0);
    if (kind.has_limits) {
      rank.fixed_seconds = 0.01 * random.uniform();
      if (random.chance(0.25)) rank.max_units = kUnits / kRanks + random.below(16);
    }
    problem.ranks.push_back(rank);
  }
  if (kind.has_present) problem.present = units_of_shares(kUnits, {}, kRanks);
  return problem;
}

// Measures both figures of one kind. Returns false if an assignment was worse than the even split.
bool measure(const Kind& kind, int instances) {
  std::vector<double> spent;
  std::vector<double> gains;
  for (int i = 0; i < instances; ++i) {
    const ShareProblem problem = problem_of(kind, static_cast<std::uint64_t>(i) + 1);
    const double start = cpu_milliseconds();
    const auto assignment = assign_shares(problem);
    spent.push_back(cpu_milliseconds() - start);
    if (!assignment.ok()) return false;
    const auto even = units_of_shares(kUnits, {}, kRanks);
    gains.push_back(slowest_rank(problem.ranks, even).seconds / assignment->seconds);
  }
  const auto told = [&](Line line, const char* figure) {
    line.with("figure", figure).with("what", kind.name).with("ranks", kRanks);
    line.with("units", static_cast<double>(kUnits)).with("instances", instances).print();
  };
  told(Line("D2", bench::quantile(spent, 0.5), "ms").limit(0.5), "assignment, CPU time, p50");
  told(Line("D2", bench::quantile(spent, 0.99), "ms"), "assignment, CPU time, p99");
  const double least = *std::min_element(gains.begin(), gains.end());
  told(Line("D2", least, "ratio").limit(1, bench::Better::higher),
       "step time of the even split over that of the assignment, least");
  told(Line("D2", bench::quantile(gains, 0.5), "ratio"),
       "step time of the even split over that of the assignment, p50");
  return least >= 1;
}

// Tries every whole assignment of a small batch, by recursion.
double brute_force(const ShareProblem& problem, std::size_t rank, std::uint64_t left, double so_far,
                   double best) {
  if (so_far >= best) return best;
  const RankCost& cost = problem.ranks[rank];
  if (rank + 1 == problem.ranks.size()) {
    if (left < cost.min_units || left > cost.max_units) return best;
    return std::min(best, std::max(so_far, seconds_of(cost, left)));
  }
  for (std::uint64_t n = cost.min_units; n <= std::min(left, cost.max_units); ++n) {
    best = brute_force(problem, rank + 1, left - n, std::max(so_far, seconds_of(cost, n)), best);
  }
  return best;
}

ShareProblem small_problem(std::uint64_t seed) {
  Random random(seed);
  ShareProblem problem;
  problem.units = 1 + random.below(10);
  const std::size_t ranks = 1 + random.below(4);
  for (std::size_t r = 0; r < ranks; ++r) {
    RankCost rank{random.chance(0.5) ? random.uniform() : 0, 0.1 + random.uniform()};
    if (random.chance(0.3)) rank.max_units = random.below(6);
    if (random.chance(0.3)) rank.min_units = random.below(3);
    problem.ranks.push_back(rank);
  }
  return problem;
}

bool compare(int instances) {
  int differ = 0;
  int without = 0;
  for (int i = 0; i < instances; ++i) {
    const ShareProblem problem = small_problem(static_cast<std::uint64_t>(i) + 1);
    const double best = brute_force(problem, 0, problem.units, 0, 1e300);
    const auto found = assign_shares(problem);
    without += best == 1e300;
    differ += found.ok() ? found->seconds != best : best != 1e300;
  }
  Line("D2", differ, "instances")
      .limit(0)
      .with("figure", "instances in which the time differs from the brute-force optimum")
      .with("instances", instances)
      .with("without_any_assignment", without)
      .print();
  return differ == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const int instances = is_quick ? 50 : 500;
  bool ok = true;
  for (const Kind& kind : {Kind{"speeds drawn from 1 to 3", false, false, false},
                           Kind{"equal speeds, one rank in 16 slower by half", true, false, false},
                           Kind{"fixed times and caps", false, true, false},
                           Kind{"fixed times and caps, near the even split", false, true, true}}) {
    ok = measure(kind, instances) && ok;
  }
  ok = compare(is_quick ? 10000 : 100000) && ok;
  if (!ok) std::fprintf(stderr, "D2: an assignment is not the best one\n");
  return ok ? 0 : 1;
}
