#include "coordinator/estimates/slowness.h"

#include <algorithm>
#include <cmath>

#include "coordinator/estimates/bounds.h"

namespace cox {
namespace {

bool are_columns_bounded(const ChannelColumns& columns) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (!are_bounded(columns[c])) return false;
  }
  return true;
}

}  // namespace

Slowness fresh_slowness(std::size_t ranks) {
  Slowness slowness;
  slowness.reports.assign(ranks, 0.0);
  for (SlownessChannel& channel : slowness.channels) {
    for (auto* column : {&channel.level, &channel.variance, &channel.sum, &channel.since}) {
      column->assign(ranks, 0.0);
    }
  }
  if (!compares_with_own_past(ranks)) return slowness;
  slowness.own_past.seconds = slowness.own_past.at_equal_samples = ChannelColumns(ranks);
  return slowness;
}

bool fits(const Slowness& slowness, std::size_t ranks) {
  const std::size_t past = compares_with_own_past(ranks) ? ranks : 0;
  return slowness.reports.size() == ranks && slowness.own_past.seconds.rows() == past &&
         slowness.own_past.at_equal_samples.rows() == past &&
         std::ranges::all_of(slowness.channels, [&](const SlownessChannel& channel) {
           const std::size_t large = channel.large_sum.size();
           return channel.level.size() == ranks && channel.variance.size() == ranks &&
                  channel.sum.size() == ranks && channel.since.size() == ranks &&
                  (large == 0 || large == ranks) && channel.slow_rounds.size() == large;
         });
}

bool Slowness::is_sane() const {
  const auto is_slow_rank = [&](const SlowRank& one) {
    return one.is_sane() && static_cast<std::size_t>(one.rank.value()) < reports.size();
  };
  const auto is_count = [](double rounds) { return rounds >= 0 && rounds <= kMostSlowRounds; };
  const auto is_channel = [&](const SlownessChannel& channel) {
    const bool all = are_bounded(channel.level) && are_bounded(channel.variance) &&
                     are_bounded(channel.sum) && are_bounded(channel.since) &&
                     are_bounded(channel.large_sum) &&
                     std::ranges::all_of(channel.slow_rounds, is_count);
    return all && is_amount(channel.pooled_variance) && is_amount(channel.pooled_samples);
  };
  const auto not_ascending = [](const SlowRank& a, const SlowRank& b) { return a.rank >= b.rank; };
  const auto is_confirmed = [](const SlowRank& one) { return one.state == SlowState::confirmed; };
  return std::ranges::all_of(slow, is_slow_rank) && std::ranges::all_of(slow, is_confirmed) &&
         std::ranges::adjacent_find(slow, not_ascending) == slow.end() &&
         std::ranges::all_of(watched, is_slow_rank) &&
         std::ranges::none_of(watched, is_confirmed) &&
         std::ranges::adjacent_find(watched, not_ascending) == watched.end() && pace.is_sane() &&
         spells.is_sane() && are_bounded(reports) && is_amount(own_past.reference_samples) &&
         are_columns_bounded(own_past.seconds) && are_columns_bounded(own_past.at_equal_samples) &&
         std::ranges::all_of(reports, [](double seen) { return seen >= 0; }) &&
         std::ranges::all_of(channels, is_channel);
}

Slowness after_restart(Slowness slowness) {
  for (SlownessChannel& channel : slowness.channels) {
    std::ranges::fill(channel.sum, 0.0);
    std::ranges::fill(channel.since, 0.0);
    channel.large_sum.clear();
    channel.slow_rounds.clear();
  }
  slowness.watched.clear();
  slowness.pace = {};
  slowness.other_rank = {};
  for (SlowRank& slow : slowness.slow)
    slow.since = slow.suspected_at = slow.phase_since = slow.until = RoundId(0);
  return slowness;
}

}  // namespace cox
