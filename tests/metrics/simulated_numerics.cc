#include "simulated_numerics.h"

#include <cmath>
#include <utility>

namespace cox::metrics {
namespace {

Reason reason(ReasonCode code, Outcome outcome, std::size_t block, std::string text) {
  Reason r;
  r.policy = code < ReasonCode::precision_start ? PolicyKind::loss_scale : PolicyKind::precision;
  r.code = code;
  r.outcome = outcome;
  r.block = static_cast<std::int32_t>(block);
  r.text = std::move(text);
  return r;
}

}  // namespace

SimulatedNumerics::SimulatedNumerics(std::size_t blocks, std::int32_t ranks, std::uint64_t seed)
    : blocks_(blocks), ranks_(ranks), scaler_(initial_state(ScalerRules{})), random_(seed) {}

std::int32_t SimulatedNumerics::culprit() const {
  return blocks_ < 6 ? -1 : static_cast<std::int32_t>(blocks_ / 3);
}

bool SimulatedNumerics::overflows_in(std::uint64_t round) const {
  return culprit() >= 0 && round >= kFirstOverflow &&
         (round - kFirstOverflow) % kOverflowPeriod == 0;
}

float SimulatedNumerics::loss_scale(std::uint64_t round) const {
  return round > kFormatsRound && culprit() >= 0 ? scaler_.scale : 0;
}

std::vector<BlockEvidence> SimulatedNumerics::evidence(std::uint64_t round) {
  std::normal_distribution<float> wobble(1.0f, 0.1f);
  std::vector<BlockEvidence> all(blocks_);
  for (std::size_t b = 0; b < blocks_; ++b) {
    if (round % 2 != 0) continue;
    BlockEvidence& block = all[b];
    const auto place = static_cast<float>(b + 1) / static_cast<float>(blocks_);
    block.sampled = 4096;
    block.underflow = static_cast<std::uint32_t>(40 * place * std::abs(wobble(random_)));
    block.saturated = b % 7 == 6 ? 3 : 0;
    block.activation = {12 * place * wobble(random_), RankId(0)};
    block.gradient = {2e-3f / place * wobble(random_), RankId(ranks_ - 1)};
    block.noise_sum = 0.004f * place * std::abs(wobble(random_)) * static_cast<float>(ranks_);
    block.noise_count = static_cast<std::uint32_t>(ranks_);
  }
  if (overflows_in(round)) {
    BlockEvidence& block = all[static_cast<std::size_t>(culprit())];
    block.overflow_backward = kOverflowValues;
    block.rank_of_overflow = RankId(ranks_ - 1);
  }
  return all;
}

void SimulatedNumerics::advance(std::uint64_t round, const ScalerRules& rules) {
  ScalerRules quick = rules;
  quick.growth_interval = 40;
  if (loss_scale(round) > 0) scaler_ = cox::advance(scaler_, quick, {overflows_in(round), 0});
}

std::vector<Reason> SimulatedNumerics::change_formats(std::uint64_t round,
                                                      std::vector<Precision>& formats) const {
  std::vector<Reason> reasons;
  const auto change = [&](std::size_t b, Precision to, ReasonCode code, std::string text) {
    formats[b] = to;
    reasons.push_back(reason(code, Outcome::changed, b, std::move(text)));
  };
  if (culprit() < 0) return reasons;
  const auto first = static_cast<std::size_t>(culprit());
  if (round == kFormatsRound) {
    for (std::size_t b = first; b < 2 * first; ++b)
      change(b, b % 7 == 6 ? Precision::fp8 : Precision::fp16, ReasonCode::precision_lowered,
             b % 7 == 6 ? "fp8 is 1.31x faster here and 0.07 % of values were clipped"
                        : "fp16 is 1.08x faster here than bf16, and its range suffices");
  }
  const std::size_t next = first + 1;  // appears and disappears
  if (round > kFormatsRound && round % 40 == 12)
    change(next, Precision::bf16, ReasonCode::precision_raised,
           "0.9 % of values underflowed, above the limit of 0.5 %");
  if (round > kFormatsRound && round % 40 == 32)
    change(next, Precision::fp16, ReasonCode::precision_lowered,
           "underflow stayed below 0.1 % for 20 rounds");
  return reasons;
}

std::vector<Reason> SimulatedNumerics::remarks(std::uint64_t round,
                                               const std::vector<std::string>& names) const {
  std::vector<Reason> reasons;
  if (!overflows_in(round)) return reasons;
  const auto b = static_cast<std::size_t>(culprit());
  reasons.push_back(reason(ReasonCode::overflow_named, Outcome::reported, b,
                           names[b] + " overflowed in backward on rank " +
                               std::to_string(ranks_ - 1) + ": 41 values; the step was skipped"));
  reasons.back().rank = RankId(ranks_ - 1);
  return reasons;
}

}  // namespace cox::metrics
