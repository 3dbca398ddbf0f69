#include "coordinator/planner/share_assignment.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace cox {
namespace {

constexpr std::uint64_t kMostUnits = 1ull << 31;
constexpr std::size_t kRanksTold = 6;

// Returns the ranks with the largest minima, or the smallest caps: "rank 3: 12, rank 0: 8, ...".
std::string told(const ShareProblem& problem, std::uint64_t RankCost::*limit) {
  const bool is_minimum = limit == &RankCost::min_units;
  const auto value = [&](std::size_t r) { return problem.ranks[r].*limit; };
  std::vector<std::size_t> order;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    if (value(r) != (is_minimum ? 0 : kNoUnitCap)) order.push_back(r);
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return is_minimum ? value(a) > value(b) : value(a) < value(b);
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(order.size(), kRanksTold); ++i) {
    text += concat(i == 0 ? "rank " : ", rank ", order[i], ": ", value(order[i]));
  }
  if (order.size() > kRanksTold) text += concat(", and ", order.size() - kRanksTold, " more");
  return text;
}

Status check_numbers(const ShareProblem& problem) {
  if (problem.ranks.empty() || problem.units < 1 || problem.units > kMostUnits) {
    return invalid_argument("share assignment: expected at least one rank and 1 to ", kMostUnits,
                            " units, found ", problem.ranks.size(), " ranks and ", problem.units,
                            " units");
  }
  if (!problem.present.empty() && problem.present.size() != problem.ranks.size()) {
    return invalid_argument("share assignment: expected present units of ", problem.ranks.size(),
                            " ranks, found ", problem.present.size());
  }
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankCost& rank = problem.ranks[r];
    const bool sane = std::isfinite(rank.fixed_seconds) && rank.fixed_seconds >= 0 &&
                      std::isfinite(rank.seconds_per_unit) && rank.seconds_per_unit >= 0;
    if (!sane) {
      return invalid_argument("share assignment: expected finite seconds of rank ", r,
                              ", not negative, found ", rank.fixed_seconds, " fixed and ",
                              rank.seconds_per_unit, " a unit");
    }
  }
  return ok_status();
}

// Checks that numbers are in range, and that minima and caps leave room for the batch. Errors: as
// assign_shares().
Status check_share_limits(const ShareProblem& problem) {
  const Status status = check_numbers(problem);
  if (!status.ok()) return status;
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankCost& rank = problem.ranks[r];
    if (rank.min_units > rank.max_units) {
      return failed_precondition("rank ", r, " must take at least ", rank.min_units,
                                 " units but can take at most ", rank.max_units,
                                 "; lower its minimum or raise its cap");
    }
    least += std::min(rank.min_units, kMostUnits + 1);
    most += std::min(rank.max_units, problem.units);
  }
  if (least > problem.units) {
    return failed_precondition(
        "the minima of the ranks add up to ", least, " units, the batch has ", problem.units, " (",
        told(problem, &RankCost::min_units), "); lower the minimum or take a larger batch");
  }
  if (most < problem.units) {
    return failed_precondition("the caps of the ranks add up to ", most, " units, the batch has ",
                               problem.units, " (", told(problem, &RankCost::max_units),
                               "); raise caps or take a smaller batch");
  }
  return ok_status();
}

std::uint64_t sum_of(std::span<const std::uint64_t> units) {
  return std::accumulate(units.begin(), units.end(), std::uint64_t{0});
}

// Units that a rank may take in one stage of the search.
struct Range {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

// Returns the most units in the range that the rank finishes by `time`, or `least` if there are
// none.
std::uint64_t units_by(const RankCost& rank, Range range, double time) {
  const auto fits = [&](std::uint64_t n) { return seconds_of(rank, n) <= time; };
  const double ideal = (time - rank.fixed_seconds) / rank.seconds_per_unit;
  // The division is a guess that rounding may have moved, nearly always by at most one.
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

// Pace is the number of units that all ranks finish by a time, and the units per second gained
// there.
struct Pace {
  std::uint64_t units = 0;
  double units_per_second = 0;
};

Pace pace_at(std::span<const RankCost> ranks, std::span<const Range> ranges, double time) {
  Pace pace;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::uint64_t units = units_by(ranks[r], ranges[r], time);
    pace.units += units;
    const bool grows = units < ranges[r].most && time >= ranks[r].fixed_seconds;
    if (grows) pace.units_per_second += 1 / ranks[r].seconds_per_unit;
  }
  return pace;
}

double middle_of(double low, double high) {
  const auto a = std::bit_cast<std::uint64_t>(low);
  const auto b = std::bit_cast<std::uint64_t>(high);
  return std::bit_cast<double>(a + (b - a) / 2);  // not negative, so the bits are in order
}

// Bracket is an interval of times. By `low` at most the wanted units are finished, by `high` at
// least the wanted units. At most two units per rank end in between (holds_few), or the two times
// are neighbours.
//
// The search uses only additions, multiplications, divisions and comparisons, so every machine gets
// the same bits. A pass is linear in ranks. Passes narrow the interval by the speed of all ranks,
// then by halves. Nearly always three or four passes suffice; the most is 80.
struct Bracket {
  double low = 0;
  double high = 0;
  bool holds_few = false;
};

constexpr int kGuesses = 16;  // by speed, nearly always two or three; then by halves

Bracket bracket_of(std::span<const RankCost> ranks, std::span<const Range> ranges,
                   std::uint64_t units) {
  Bracket bracket;
  std::uint64_t low_units = 0;
  std::uint64_t high_units = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    bracket.high = std::max(bracket.high, seconds_of(ranks[r], ranges[r].most));
    low_units += ranges[r].least;
    high_units += ranges[r].most;
  }
  const std::uint64_t few = 2 * ranks.size();
  const auto wanted = static_cast<double>(units);
  const double aside = 1 + static_cast<double>(ranks.size()) / 16;
  double guess = least_seconds(ranks, units);
  for (int tried = 0; low_units < units && high_units - low_units > few; ++tried) {
    const bool is_inside = guess > bracket.low && guess < bracket.high && tried < kGuesses;
    const double time = is_inside ? guess : middle_of(bracket.low, bracket.high);
    if (time == bracket.low) return bracket;
    const Pace pace = pace_at(ranks, ranges, time);
    (pace.units <= units ? bracket.low : bracket.high) = time;
    (pace.units <= units ? low_units : high_units) = pace.units;
    // Aims slightly before or behind the time when all units are finished: at the end that is
    // further away.
    const double aim = units - low_units > ranks.size() ? wanted - aside : wanted + aside;
    guess = time + (aim - static_cast<double>(pace.units)) / pace.units_per_second;
  }
  bracket.holds_few = true;
  return bracket;
}

// Next is a unit that a rank may take next, with its finish time.
struct Next {
  double seconds = 0;
  std::size_t rank = 0;
  bool operator<(const Next& other) const {
    return std::tie(seconds, rank) < std::tie(other.seconds, other.rank);
  }
};

// Takes the `left` units that finish soonest among those that end by `time`, the lower rank first.
// REQUIRES: there are at least `left` such units.
void take_soonest(std::span<const RankCost> ranks, std::span<const Range> ranges, double time,
                  std::uint64_t left, std::vector<std::uint64_t>& taken) {
  if (left == 0) return;
  std::vector<Next> next;
  next.reserve(4 * ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::uint64_t last = units_by(ranks[r], ranges[r], time);
    for (std::uint64_t n = taken[r] + 1; n <= last; ++n)
      next.push_back({seconds_of(ranks[r], n), r});
  }
  const auto end = next.begin() + static_cast<std::ptrdiff_t>(left);
  std::nth_element(next.begin(), end - 1, next.end());
  for (auto it = next.begin(); it != end; ++it) ++taken[it->rank];
}

// Gives every unit above the minima to the rank that finishes it soonest. REQUIRES: the sum of the
// minima <= units <= the sum of the maxima.
std::vector<std::uint64_t> fill(std::span<const RankCost> ranks, std::span<const Range> ranges,
                                std::uint64_t units) {
  std::vector<std::uint64_t> taken;
  taken.reserve(ranges.size());
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
  if (bracket.holds_few) {
    take_soonest(ranks, ranges, bracket.high, left, taken);
  } else {
    take_until(bracket.high);  // units that end at the same time go to the lower ranks first
  }
  return taken;
}

std::vector<Range> ranges_of(const ShareProblem& problem) {
  std::vector<Range> ranges;
  ranges.reserve(problem.ranks.size());
  for (const RankCost& rank : problem.ranks) {
    ranges.push_back({rank.min_units, std::min(rank.max_units, problem.units)});
  }
  return ranges;
}

// Moves the fewest units: keeps the present units within the limits and the best time, then adds
// missing units or removes surplus units.
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

Result<ShareAssignment> fastest_shares(const ShareProblem& problem) {
  const Status status = check_share_limits(problem);
  if (!status.ok()) return status;
  ShareAssignment assignment;
  assignment.units = fill(problem.ranks, ranges_of(problem), problem.units);
  assignment.seconds = slowest_rank(problem.ranks, assignment.units).seconds;
  return assignment;
}

Result<bool> may_end_by(const ShareProblem& problem, double seconds) {
  const Status status = check_share_limits(problem);
  if (!status.ok()) return status;
  std::uint64_t units = 0;
  for (const RankCost& rank : problem.ranks) {
    units += units_by(rank, {rank.min_units, std::min(rank.max_units, problem.units)}, seconds);
  }
  return units >= problem.units;
}

Result<ShareAssignment> assign_shares(const ShareProblem& problem) {
  Result<ShareAssignment> assignment = fastest_shares(problem);
  if (assignment.ok() && !problem.present.empty()) {
    assignment->units = stay_near(problem, ranges_of(problem), assignment->seconds);
  }
  return assignment;
}

double least_seconds(std::span<const RankCost> ranks, std::uint64_t units) {
  double work = static_cast<double>(units);
  double speed = 0;
  for (const RankCost& rank : ranks) {
    work += rank.fixed_seconds / rank.seconds_per_unit;
    speed += 1 / rank.seconds_per_unit;
  }
  return work / speed;
}

SlowestRank slowest_rank(std::span<const RankCost> ranks, std::span<const std::uint64_t> units) {
  SlowestRank slowest{0, seconds_of(ranks[0], units[0])};
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const double seconds = seconds_of(ranks[r], units[r]);
    if (seconds > slowest.seconds) slowest = {r, seconds};
  }
  return slowest;
}

}  // namespace cox
