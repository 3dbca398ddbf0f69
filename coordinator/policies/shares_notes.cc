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

SharesNotes::SharesNotes(PolicyState state, std::int32_t world_size)
    : ranks_(static_cast<std::size_t>(world_size)), state_(std::move(state)) {
  if (is_readable() && std::ranges::all_of(seen(), is_count) &&
      std::ranges::all_of(count(), is_count)) {
    return;
  }
  state_.version = kVersion;
  state_.values.assign(kHeader + ranks_ * (kColumns + kRecent), 0.0);
  at(0) = static_cast<double>(ranks_);
  scale() = 1;
  std::ranges::fill(skip(), 1.0);
}

void SharesNotes::start_again() {
  shares_plan() = settled_rounds() = worth_rounds() = told() = 0;
  has_news() = 1;
  for (const auto& column : {seen(), up(), down(), up_since(), down_since()}) {
    std::ranges::fill(column, 0.0);
  }
  for (double& reports : count()) reports = std::min(reports, 1.0);
  std::ranges::fill(skip(), 1.0);
}

bool SharesNotes::is_readable() const {
  return state_.version == kVersion &&
         state_.values.size() == kHeader + ranks_ * (kColumns + kRecent) &&
         state_.values[0] == static_cast<double>(ranks_) &&
         std::ranges::all_of(state_.values, is_sane);
}

}  // namespace cox
