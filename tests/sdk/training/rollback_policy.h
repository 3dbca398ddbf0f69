// Orders one rollback: in a given round or later, requests a return to before that round.
#pragma once

#include <string>
#include <utility>

#include "coordinator/decide/policy.h"

class RollBackOnce final : public cox::Policy {
 public:
  explicit RollBackOnce(std::uint64_t round) : round_(round) {}
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "roll_back_once"; }

  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    cox::PolicyOutput output;
    output.state = std::move(state);
    const bool is_done = input.plan.rollback.ticket > 0;
    if (is_done || input.signals.round < cox::RoundId(round_)) return output;
    cox::Reason why;
    why.policy = cox::PolicyKind::custom;
    why.code = cox::ReasonCode::custom;
    why.text = "the test wants to go back";
    output.proposals.push_back({cox::RollBack{cox::RoundId(round_)}, why});
    return output;
  }

 private:
  std::uint64_t round_;
};
