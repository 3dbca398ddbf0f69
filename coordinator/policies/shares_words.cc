#include "coordinator/policies/shares_words.h"

#include <algorithm>

#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::size_t kRanksTold = 4;

std::uint64_t distance(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : b - a;
}

const char* units_word(const SharesProblem& shares) {
  return shares.unit_samples > 1 ? "micro-batches" : "samples";
}

}  // namespace

std::string milliseconds(double seconds) {
  return sentence("%.3g ms", 1e3 * seconds);
}

std::string moves_text(const SharesProblem& shares, const ShareAssignment& assignment,
                       Times times) {
  const std::vector<std::uint64_t>& present = shares.problem.present;
  const std::vector<std::uint64_t>& units = assignment.units;
  std::vector<std::size_t> moved;
  for (std::size_t r = 0; r < units.size(); ++r) {
    if (units[r] != present[r]) moved.push_back(r);
  }
  std::stable_sort(moved.begin(), moved.end(), [&](std::size_t a, std::size_t b) {
    return distance(units[a], present[a]) > distance(units[b], present[b]);
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(moved.size(), kRanksTold); ++i) {
    const std::size_t r = moved[i];
    text += sentence("%srank %zu takes %llu %s instead of %llu", i == 0 ? "" : ", ", r,
                     static_cast<unsigned long long>(units[r]), units_word(shares),
                     static_cast<unsigned long long>(present[r]));
    const RankCost& rank = shares.problem.ranks[r];
    text += times == Times::measured ? " (" + milliseconds(rank.seconds_per_unit) + " each)"
                                     : sentence(" (speed %.3g)", 1 / rank.seconds_per_unit);
  }
  if (moved.size() > kRanksTold) text += sentence(", %zu more move", moved.size() - kRanksTold);
  return text;
}

std::string held_text(const SharesProblem& shares, const std::vector<std::size_t>& held) {
  std::string text;
  for (std::size_t i = 0; i < std::min(held.size(), kRanksTold); ++i) {
    text += sentence("; rank %zu is held to %llu %s by its cap", held[i],
                     static_cast<unsigned long long>(shares.problem.ranks[held[i]].max_units),
                     units_word(shares));
  }
  if (held.size() > kRanksTold) text += sentence("; so are %zu more", held.size() - kRanksTold);
  return text;
}

std::string unit_text(const SharesProblem& shares) {
  if (shares.unit_samples == 1) return "a unit is a sample";
  return sentence("a unit is a micro-batch of %llu samples",
                  static_cast<unsigned long long>(shares.unit_samples));
}

}  // namespace cox
