#include "coordinator/core/said_before.h"

#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kStreak = 2;
constexpr std::size_t kDigests = 3;

// Small enough to be a double exactly.
double digest_of(std::span<const Reason> reasons) {
  std::uint64_t hash = 0;
  for (const Reason& reason : reasons) {
    const std::uint64_t what = (static_cast<std::uint64_t>(reason.code) << 8 |
                                static_cast<std::uint64_t>(reason.outcome)) +
                               1;
    hash = (hash * 1000003u + what) & ((1ull << 48) - 1);
  }
  return static_cast<double>(hash);
}

}  // namespace

SaidBefore::SaidBefore(PolicyState state, std::size_t policies) : state_(std::move(state)) {
  if (state_.version == kVersion && state_.values.size() == kDigests + policies) return;
  state_.version = kVersion;
  state_.values.assign(kDigests + policies, 0.0);
}

bool SaidBefore::is_news(std::size_t flag, bool now) {
  const bool before = std::exchange(state_.values[flag], now ? 1.0 : 0.0) != 0.0;
  return now && !before;
}

std::uint32_t SaidBefore::streak(bool now) {
  double& rounds = state_.values[kStreak];
  rounds = now ? (rounds < 1e9 ? rounds + 1 : rounds) : 0;
  return static_cast<std::uint32_t>(rounds);
}

bool SaidBefore::is_news_of(std::size_t policy, std::span<const Reason> withheld) {
  const double now = digest_of(withheld);
  return std::exchange(state_.values[kDigests + policy], now) != now && !withheld.empty();
}

}  // namespace cox
