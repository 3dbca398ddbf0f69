// What `stragglers` remembers, as named columns over one flat list of numbers
// (NumbersState::values), so that the whole costs no conversion in a round. Layout, version 1, with
// N ranks and C channels (0 = the rank's whole own work, then one per phase that is own work):
//
//   world, pooled variance [C], pooled samples [C],
//   reports [N], named [N], named_round [N], gone [N],
//   then for each channel: level [N], variance [N], sum [N], since [N], baseline [N or 0]
//
// 1 + 2C + N (4 + 4C) numbers, and CN more where ranks are compared with their own past (N <= 2).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "coordinator/core/phase.h"
#include "coordinator/core/policy.h"

namespace cox {

inline constexpr std::array<Phase, 6> kOwnPhases = {
    Phase::data, Phase::forward, Phase::backward, Phase::compute, Phase::optimizer, Phase::other};
inline constexpr std::size_t kChannels = 1 + kOwnPhases.size();

// Two ranks cannot tell who is unusual, and one has nobody to compare with.
constexpr bool compares_with_own_past(std::int32_t world_size) {
  return world_size <= 2;
}

class StragglerMemory {
 public:
  // A state of another version, size or world counts as fresh.
  StragglerMemory(NumbersState state, std::int32_t world_size);

  double& pooled_variance(std::size_t channel) { return at(1 + channel); }
  double& pooled_samples(std::size_t channel) { return at(1 + kChannels + channel); }

  std::span<double> reports() { return rank_column(0); }      // rounds seen of the rank
  std::span<double> named() { return rank_column(1); }        // 0, or 1 + index in kOwnPhases
  std::span<double> named_round() { return rank_column(2); }  // of the last word about the rank
  std::span<double> gone() { return rank_column(3); }         // CUSUM against being slow

  std::span<double> level(std::size_t c) { return channel_column(c, 0); }     // mean excess
  std::span<double> variance(std::size_t c) { return channel_column(c, 1); }  // of its noise
  std::span<double> sum(std::size_t c) { return channel_column(c, 2); }       // CUSUM
  std::span<double> since(std::size_t c) { return channel_column(c, 3); }     // round sum left 0
  std::span<double> baseline(std::size_t c) { return channel_column(c, 4); }  // own past, seconds

  PolicyState release() && { return PolicyState::of(std::move(state_)); }

 private:
  static constexpr std::size_t kRankColumns = 4;
  static constexpr std::size_t kHeader = 1 + 2 * kChannels;

  double& at(std::size_t index) { return state_.values[index]; }
  std::span<double> column(std::size_t index) {
    return std::span(state_.values).subspan(kHeader + index * ranks_, ranks_);
  }
  std::span<double> rank_column(std::size_t index) { return column(index); }
  std::span<double> channel_column(std::size_t channel, std::size_t index) {
    return column(kRankColumns + channel * channel_columns_ + index);
  }

  std::size_t ranks_;
  std::size_t channel_columns_;  // 5 with a baseline, else 4
  NumbersState state_;
};

}  // namespace cox
