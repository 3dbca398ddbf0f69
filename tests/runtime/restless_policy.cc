#include "tests/runtime/restless_policy.h"

#include <random>
#include <utility>

namespace cox::test {
namespace {

using Dice = std::mt19937_64;

std::uint64_t roll(Dice& dice, std::uint64_t sides) {
  return dice() % sides;
}

SetShares some_shares(Dice& dice, std::int32_t ranks) {
  SetShares change;
  for (std::int32_t r = 0; r < ranks; ++r) {
    change.shares.push_back(static_cast<std::uint32_t>(roll(dice, 3)));
  }
  change.shares[roll(dice, change.shares.size())] += 1;  // at least one rank works
  return change;
}

SetActions some_actions(Dice& dice, std::int32_t ranks, std::size_t blocks) {
  SetActions change;
  change.profiles.resize(1 + roll(dice, 3));
  for (auto& actions : change.profiles) {
    for (std::size_t b = 0; b < blocks; ++b) {
      actions.push_back(static_cast<MemoryAction>(roll(dice, 4)));
    }
  }
  for (std::int32_t r = 0; r < ranks; ++r) {
    change.rank_profile.emplace_back(
        static_cast<ProfileId::rep>(roll(dice, change.profiles.size())));
  }
  return change;
}

PlanChange some_change(Dice& dice, const PolicyInput& input) {
  const std::uint64_t round = input.signals.round.value();
  const std::size_t blocks = input.job.blocks.size();
  switch (roll(dice, 8)) {
    case 0:
      return SetBatch{16 * (1 + roll(dice, 4))};
    case 1:
      return HoldUntil{RoundId(round + 1 + roll(dice, 6))};
    case 2:
      return RollBack{RoundId(round)};
    case 3:
      return some_actions(dice, input.job.world_size, blocks);
    case 4:
    case 5:
      return SetPrecision{BlockId(static_cast<BlockId::rep>(roll(dice, blocks))),
                          static_cast<Precision>(roll(dice, 4))};
    default:
      return some_shares(dice, input.job.world_size);
  }
}

}  // namespace

PolicyOutput RestlessPolicy::propose(const PolicyInput& input, PolicyState state) const {
  PolicyOutput output{{}, {}, std::move(state)};
  Dice dice(seed_ * 1'000'003 + input.signals.round.value());
  if (roll(dice, 2) == 0) return output;
  Reason reason;
  reason.code = ReasonCode::custom;
  reason.text = "restless";
  output.proposals.push_back({some_change(dice, input), reason});
  return output;
}

}  // namespace cox::test
