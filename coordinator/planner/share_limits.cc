#include "coordinator/planner/share_limits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace cox {
namespace {

constexpr std::size_t kRanksTold = 6;

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

// The ranks of the largest minima, or of the smallest caps: "rank 3: 12, rank 0: 8, ...".
std::string told(const ShareProblem& problem, std::uint64_t RankCost::*limit) {
  const bool is_minimum = limit == &RankCost::min_units;
  const auto value = [&](std::size_t r) { return problem.ranks[r].*limit; };
  std::vector<std::size_t> order;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    if (value(r) != (is_minimum ? 0 : kNoUnitCap)) order.push_back(r);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return is_minimum ? value(a) > value(b) : value(a) < value(b);
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(order.size(), kRanksTold); ++i) {
    text += (i == 0 ? "rank " : ", rank ") + number(order[i]) + ": " + number(value(order[i]));
  }
  if (order.size() > kRanksTold) text += ", and " + number(order.size() - kRanksTold) + " more";
  return text;
}

Status check_numbers(const ShareProblem& problem) {
  if (problem.ranks.empty() || problem.units < 1 || problem.units > kMostUnits) {
    return invalid_argument("share assignment: expected a rank or more and 1 to " +
                            number(kMostUnits) + " units, found " + number(problem.ranks.size()) +
                            " ranks and " + number(problem.units) + " units");
  }
  if (!problem.present.empty() && problem.present.size() != problem.ranks.size()) {
    return invalid_argument("share assignment: expected present units of " +
                            number(problem.ranks.size()) + " ranks, found " +
                            number(problem.present.size()));
  }
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankCost& rank = problem.ranks[r];
    const bool sane = std::isfinite(rank.fixed_seconds) && rank.fixed_seconds >= 0 &&
                      std::isfinite(rank.seconds_per_unit) && rank.seconds_per_unit >= 0;
    if (!sane) {
      return invalid_argument("share assignment: expected finite seconds of rank " + number(r) +
                              ", not negative, found " + std::to_string(rank.fixed_seconds) +
                              " fixed and " + std::to_string(rank.seconds_per_unit) + " a unit");
    }
  }
  return ok_status();
}

}  // namespace

Status check_share_limits(const ShareProblem& problem) {
  const Status status = check_numbers(problem);
  if (!status.ok()) return status;
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankCost& rank = problem.ranks[r];
    if (rank.min_units > rank.max_units) {
      return failed_precondition("rank " + number(r) + " is to take at least " +
                                 number(rank.min_units) + " units and can take " +
                                 number(rank.max_units) + "; lower its minimum or raise its cap");
    }
    least += std::min(rank.min_units, kMostUnits + 1);
    most += std::min(rank.max_units, problem.units);
  }
  if (least > problem.units) {
    return failed_precondition("the minima of the ranks add up to " + number(least) +
                               " units, the batch has " + number(problem.units) + " (" +
                               told(problem, &RankCost::min_units) +
                               "); lower the minimum or take a larger batch");
  }
  if (most < problem.units) {
    return failed_precondition("the caps of the ranks add up to " + number(most) +
                               " units, the batch has " + number(problem.units) + " (" +
                               told(problem, &RankCost::max_units) +
                               "); raise caps or take a smaller batch");
  }
  return ok_status();
}

}  // namespace cox
