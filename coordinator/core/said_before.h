// Memory of Decide about what it already said, so that a reason is given when it becomes true and
// not again in every round. Kept as the state named "decide", and so journalled and saved. Value.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/policy.h"

namespace cox {

struct SaidState {
  static constexpr std::uint32_t kVersion = 1;
  std::array<bool, 2> flags{};          // by SaidBefore::kNobodyApplies and the others
  std::uint32_t streak = 0;             // rounds
  std::vector<std::uint64_t> withheld;  // one digest per policy; 0 = nothing was withheld
  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.flags);
    visit(self.streak);
    visit(self.withheld);
  }
};

class SaidBefore {
 public:
  // `policies` in the number asked; a state of another number starts anew.
  SaidBefore(PolicyState state, std::size_t policies);

  // True when `now` is true and was not at the last call for this flag.
  bool is_news(std::size_t flag, bool now);

  // Rounds in a row for which `now` was true, this one included.
  std::uint32_t streak(bool now);

  // True when what is withheld from a policy (codes of its reasons) differs from the last round.
  bool is_news_of(std::size_t policy, std::span<const Reason> withheld);

  PolicyState state() && { return PolicyState::of(std::move(state_)); }

  static constexpr std::size_t kNobodyApplies = 0;
  static constexpr std::size_t kOverrideRefused = 1;

 private:
  SaidState state_;
};

}  // namespace cox
