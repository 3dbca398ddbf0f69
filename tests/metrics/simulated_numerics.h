// The numerics of a simulated job: formats that come and go, a loss scaler, overflows in a known
// block, pass and rank, evidence of every other round. Deterministic; no clock, no threads.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/loss_scale.h"
#include "coordinator/decide/decide.h"

namespace cox::metrics {

// From round 30 on a third of the inner blocks is in fp16 and some in fp8; every 25 rounds, first
// in round 45, kOverflowValues values overflow on the last rank in backward of the first fp16
// block.
inline constexpr std::uint64_t kFormatsRound = 30;
inline constexpr std::uint64_t kOverflowPeriod = 25;
inline constexpr std::uint64_t kFirstOverflow = 45;
inline constexpr std::uint32_t kOverflowValues = 41;

class SimulatedNumerics {
 public:
  SimulatedNumerics(std::size_t blocks, std::int32_t ranks, std::uint64_t seed);

  // Blocks of the job that fp16 and fp8 go to, and the one that overflows; -1 in tiny models.
  std::int32_t culprit() const;
  bool overflows_in(std::uint64_t round) const;
  // 0 before the scaler is at work.
  float loss_scale(std::uint64_t round) const;

  std::vector<BlockEvidence> evidence(std::uint64_t round);
  // After the round: the scaler goes on.
  void advance(std::uint64_t round, const ScalerRules& rules);
  // The formats that the job changes to in this round, with a reason each block; empty = none.
  std::vector<Reason> change_formats(std::uint64_t round, std::vector<Precision>& formats) const;
  // A reason without a change.
  std::vector<Reason> remarks(std::uint64_t round, const std::vector<std::string>& names) const;

 private:
  std::size_t blocks_;
  std::int32_t ranks_;
  ScalerState scaler_;
  std::mt19937_64 random_;
};

}  // namespace cox::metrics
