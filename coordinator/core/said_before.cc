#include "coordinator/core/said_before.h"

#include <algorithm>
#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kLongestStreak = 1'000'000'000;

std::uint64_t digest_of(std::span<const Reason> reasons) {
  std::uint64_t hash = 0;
  for (const Reason& reason : reasons) {
    const std::uint64_t what = (static_cast<std::uint64_t>(reason.code) << 8 |
                                static_cast<std::uint64_t>(reason.outcome)) +
                               1;
    hash = hash * 1000003u + what;
  }
  return hash;
}

}  // namespace

SaidBefore::SaidBefore(PolicyState state, std::size_t policies)
    : state_(state.take_or_fresh<SaidState>()) {
  if (state_.withheld.size() == policies) return;
  state_ = {};
  state_.withheld.resize(policies);
}

bool SaidBefore::is_news(std::size_t flag, bool now) {
  const bool before = std::exchange(state_.flags[flag], now);
  return now && !before;
}

std::uint32_t SaidBefore::streak(bool now) {
  state_.streak = now ? std::min(state_.streak, kLongestStreak) + 1 : 0;
  return state_.streak;
}

bool SaidBefore::is_news_of(std::size_t policy, std::span<const Reason> withheld) {
  const std::uint64_t now = digest_of(withheld);
  return std::exchange(state_.withheld[policy], now) != now && !withheld.empty();
}

}  // namespace cox
