// The numerics of a simulated job: changing formats, a loss scaler, overflows in a known block,
// pass and rank, evidence in every second round. Deterministic; no clock, no threads.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/loss_scale.h"
#include "coordinator/decide/decide.h"

namespace cox::metrics {

// From round 30 on, a third of the inner blocks is in fp16 and some in fp8. Every 25 rounds, first
// in round 45, kOverflowValues values overflow on the last rank in backward of the first fp16
// block.
inline constexpr std::uint64_t kFormatsRound = 30;
inline constexpr std::uint64_t kOverflowPeriod = 25;
inline constexpr std::uint64_t kFirstOverflow = 45;
inline constexpr std::uint32_t kOverflowValues = 41;

class SimulatedNumerics {
 public:
  SimulatedNumerics(std::size_t blocks, std::int32_t ranks, std::uint64_t seed);

  // Returns the block that overflows; -1 in tiny models.
  std::int32_t culprit() const;
  bool overflows_in(std::uint64_t round) const;
  // Returns 0 before the scaler works.
  float loss_scale(std::uint64_t round) const;

  std::vector<BlockEvidence> evidence(std::uint64_t round);
  // Advances the scaler after the round.
  void advance(std::uint64_t round, const ScalerRules& rules);
  // Changes the formats of this round. Returns a reason for each block; empty = no change.
  std::vector<Reason> change_formats(std::uint64_t round, std::vector<Precision>& formats) const;
  // Returns reasons without a change.
  std::vector<Reason> remarks(std::uint64_t round, const std::vector<std::string>& names) const;

 private:
  std::size_t blocks_;
  std::int32_t ranks_;
  ScalerState scaler_;
  std::mt19937_64 random_;
};

}  // namespace cox::metrics
