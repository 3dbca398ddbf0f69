#include "coordinator/planner/share_assignment.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "coordinator/planner/share_limits.h"

namespace cox {
namespace {

std::uint64_t sum_of(std::span<const std::uint64_t> units) {
  return std::accumulate(units.begin(), units.end(), std::uint64_t{0});
}

// Units that a rank may take in one stage of the search.
struct Range {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

// The most units in the range that the rank finishes by `time`; `least` where it cannot.
std::uint64_t units_by(const RankCost& rank, Range range, double time) {
  const auto fits = [&](std::uint64_t n) { return seconds_of(rank, n) <= time; };
  const double ideal = (time - rank.fixed_seconds) / rank.seconds_per_unit;
  // The division is a guess that rounding may have moved: by one nearly always.
  if (ideal >= static_cast<double>(range.least) && ideal < static_cast<double>(range.most)) {
    const auto guess = static_cast<std::uint64_t>(ideal);
    if (fits(guess) && !fits(guess + 1)) return guess;
  }
  if (fits(range.most)) return range.most;
  if (!fits(range.least)) return range.least;
  std::uint64_t good = range.least;
  std::uint64_t bad = range.most;
  while (bad - good > 1) {
    const std::uint64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

std::uint64_t total_by(std::span<const RankCost> ranks, std::span<const Range> ranges,
                       double time) {
  std::uint64_t total = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) total += units_by(ranks[r], ranges[r], time);
  return total;
}

double middle_of(double low, double high) {
  const auto a = std::bit_cast<std::uint64_t>(low);
  const auto b = std::bit_cast<std::uint64_t>(high);
  return std::bit_cast<double>(a + (b - a) / 2);  // not negative, so bits are in order
}

// Two times: by `low` no more than the units wanted are finished, by `high` at least as many. Few
// are left between them (two a rank at most), or the two are neighbours.
struct Bracket {
  double low = 0;
  double high = 0;
};

Bracket bracket_of(std::span<const RankCost> ranks, std::span<const Range> ranges,
                   std::uint64_t units) {
  Bracket bracket;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    bracket.high = std::max(bracket.high, seconds_of(ranks[r], ranges[r].most));
  }
  std::uint64_t left = units;
  while (left > 2 * ranks.size()) {
    const double middle = middle_of(bracket.low, bracket.high);
    if (middle == bracket.low) break;
    const std::uint64_t total = total_by(ranks, ranges, middle);
    (total <= units ? bracket.low : bracket.high) = middle;
    if (total <= units) left = units - total;
  }
  return bracket;
}

struct Next {
  double seconds = 0;  // with one unit more
  std::size_t rank = 0;
  bool operator<(const Next& other) const {  // the top of a heap is the largest
    return std::tie(other.seconds, other.rank) < std::tie(seconds, rank);
  }
};

// Every unit above the minima to the rank that finishes it soonest. Requires: the sum of the minima
// <= units <= the sum of the maxima.
std::vector<std::uint64_t> fill(std::span<const RankCost> ranks, std::span<const Range> ranges,
                                std::uint64_t units) {
  std::vector<std::uint64_t> taken;
  for (const Range& range : ranges) taken.push_back(range.least);
  std::uint64_t left = units - sum_of(taken);
  const auto take_until = [&](double time) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const std::uint64_t more = std::min(units_by(ranks[r], ranges[r], time) - taken[r], left);
      taken[r] += more;
      left -= more;
    }
  };
  const Bracket bracket = bracket_of(ranks, ranges, units);
  take_until(bracket.low);
  // What ends at one and the same time goes to the lower ranks first, as from the heap.
  if (left > 2 * ranks.size()) take_until(bracket.high);

  std::vector<Next> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (taken[r] < ranges[r].most) first.push_back({seconds_of(ranks[r], taken[r] + 1), r});
  }
  std::priority_queue<Next> queue({}, std::move(first));
  for (; left > 0; --left) {
    const std::size_t r = queue.top().rank;
    queue.pop();
    if (++taken[r] < ranges[r].most) queue.push({seconds_of(ranks[r], taken[r] + 1), r});
  }
  return taken;
}

// Fewest moves: the present units as far as limits and the best time allow, then what is missing is
// added, or what is too much is taken away.
std::vector<std::uint64_t> stay_near(const ShareProblem& problem, std::vector<Range> ranges,
                                     double time) {
  std::vector<std::uint64_t> near;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    ranges[r].most = units_by(problem.ranks[r], ranges[r], time);
    near.push_back(std::clamp(problem.present[r], ranges[r].least, ranges[r].most));
  }
  const bool adds = sum_of(near) < problem.units;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    (adds ? ranges[r].least : ranges[r].most) = near[r];
  }
  return fill(problem.ranks, ranges, problem.units);
}

}  // namespace

Result<ShareAssignment> assign_shares(const ShareProblem& problem) {
  const Status status = check_share_limits(problem);
  if (!status.ok()) return status;
  std::vector<Range> ranges;
  for (const RankCost& rank : problem.ranks) {
    ranges.push_back({rank.min_units, std::min(rank.max_units, problem.units)});
  }
  ShareAssignment assignment;
  assignment.units = fill(problem.ranks, ranges, problem.units);
  assignment.seconds = slowest_rank(problem.ranks, assignment.units).seconds;
  if (!problem.present.empty()) {
    assignment.units = stay_near(problem, std::move(ranges), assignment.seconds);
  }
  return assignment;
}

SlowestRank slowest_rank(std::span<const RankCost> ranks, std::span<const std::uint64_t> units) {
  SlowestRank slowest{0, seconds_of(ranks[0], units[0])};
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const double seconds = seconds_of(ranks[r], units[r]);
    if (seconds > slowest.seconds) slowest = {r, seconds};
  }
  return slowest;
}

std::vector<std::uint64_t> units_of_shares(std::uint64_t units,
                                           std::span<const std::uint32_t> shares,
                                           std::size_t ranks) {
  const std::vector<std::uint32_t> even(shares.empty() ? ranks : 0, 1);
  if (shares.empty()) shares = even;
  const std::uint64_t all = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  std::vector<std::uint64_t> parts;
  std::vector<std::uint64_t> remainders;
  for (const std::uint32_t share : shares) {
    parts.push_back(units * share / all);
    remainders.push_back(units * share % all);
  }
  const std::uint64_t left = units - sum_of(parts);
  if (left == 0) return parts;
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; i < left; ++i) ++parts[order[i]];
  return parts;
}

}  // namespace cox
