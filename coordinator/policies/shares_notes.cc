#include "coordinator/policies/shares_notes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr double kLargest = 1e18;

bool is_sane(double value) {
  return std::fabs(value) <= kLargest;
}
bool is_count(double value) {
  return value >= 0 && value == std::floor(value);
}

}  // namespace

SharesNotes::SharesNotes(NumbersState state, std::int32_t world_size)
    : ranks_(static_cast<std::size_t>(world_size)), state_(std::move(state)) {
  if (is_readable()) return;
  state_.version = kVersion;
  state_.values.assign(kHeader + ranks_ * (kColumns + kRecent), 0.0);
  at(0) = static_cast<double>(ranks_);
  scale() = 1;
  std::ranges::fill(skip(), 1.0);
}

void SharesNotes::start_again() {
  shares_plan() = settled_rounds() = worth_rounds() = told() = 0;
  has_news() = 1;
  for (const auto& column :
       {seen(), up(), down(), up_since(), down_since(), work_before(), seen_before()}) {
    std::ranges::fill(column, 0.0);
  }
  for (double& reports : count()) reports = std::min(reports, 1.0);
  std::ranges::fill(skip(), 1.0);
}

// Whatever is divided by or used as an index is checked; the rest may be any number.
bool SharesNotes::is_readable() {
  return state_.version == kVersion &&
         state_.values.size() == kHeader + ranks_ * (kColumns + kRecent) &&
         state_.values[0] == static_cast<double>(ranks_) &&
         std::ranges::all_of(state_.values, is_sane) && std::ranges::all_of(seen(), is_count) &&
         std::ranges::all_of(count(), is_count) && levels_are_times();
}

bool SharesNotes::levels_are_times() {
  const auto is_positive = [](double value) { return value > 0; };
  for (std::size_t r = 0; r < ranks_; ++r) {
    const auto filled = static_cast<std::size_t>(std::min<double>(seen()[r], kRecent));
    if (count()[r] > 0 && !(level()[r] > 0)) return false;
    if (!std::ranges::all_of(recent(r).first(filled), is_positive)) return false;
  }
  return scale() > 0 && fixed_samples() >= 0;
}

}  // namespace cox
