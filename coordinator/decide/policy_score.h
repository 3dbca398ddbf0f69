// The running score of each policy, in seconds. A measured plan has an account while its changes
// are in force. The plan's seconds go to the policies behind it, in proportion to their promises.
// Part of the effects (effects.h). Plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/plan_fields.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/state_codec.h"

namespace cox {

// AppliedChange is a change that went into a plan.
struct AppliedChange {
  std::string policy;  // the policy's name
  PolicyKind kind = PolicyKind::none;
  Knob knob = Knob::other;
  std::uint16_t first_block = 0;  // for precision only
  std::uint16_t blocks = 0;
  double promised_ratio = 0;  // ratio of step times; 0 = unknown
  bool is_for_time = false;   // a gain that promises a shorter step, not a necessity

  static auto fields(auto& self) {
    return message("AppliedChange", field(1, "policy", self.policy), field(2, "kind", self.kind),
                   field(3, "knob", self.knob), field(4, "first_block", self.first_block),
                   field(5, "blocks", self.blocks), field(6, "promised_ratio", self.promised_ratio),
                   field(7, "is_for_time", self.is_for_time));
  }
  // Returns whether the numbers can have come from a measured plan.
  bool is_sane() const;
};

// Returns whether seconds, samples, tokens or their ratio can have been measured: 0 to 1e15.
bool is_believable(double amount);

// PolicyScore sums up the results of a policy's decisions since the job first began. A plan's
// seconds count if the interval of its measured ratio of step times excludes 1. The policies of one
// plan divide the seconds in proportion to their promises.
struct PolicyScore {
  PolicyKind policy = PolicyKind::none;
  std::uint32_t helped = 0;
  std::uint32_t did_not_help = 0;
  std::uint32_t not_sure = 0;
  std::uint32_t taken_back = 0;
  double seconds_gained = 0;
  double seconds_lost = 0;
  double seconds_promised = 0;  // gained less lost seconds if all forecasts had come true

  static auto fields(auto& self) {
    return message("PolicyScore", field(1, "policy", self.policy), field(2, "helped", self.helped),
                   field(3, "did_not_help", self.did_not_help), field(4, "not_sure", self.not_sure),
                   field(5, "taken_back", self.taken_back),
                   field(6, "seconds_gained", self.seconds_gained),
                   field(7, "seconds_lost", self.seconds_lost),
                   field(8, "seconds_promised", self.seconds_promised));
  }
  // Returns whether the numbers can have come from a measured plan.
  bool is_sane() const;
};

// Returns saved seconds as a text: "0.4 s", "3 min 05 s". Negative means lost: "-2.0 s". Less than
// a twentieth of a second gives "0 s".
std::string gain_text(double seconds);

// Account records the seconds of a measured plan whose changes are in force.
struct Account {
  std::uint64_t first_plan = 0;
  std::uint64_t plan = 0;
  double ratio = 1;          // measured ratio of step times
  double seconds_saved = 0;  // so far
  std::vector<AppliedChange> changes;

  static auto fields(auto& self) {
    return message("Account", field(1, "first_plan", self.first_plan), field(2, "plan", self.plan),
                   field(3, "ratio", self.ratio), field(4, "seconds_saved", self.seconds_saved),
                   field(5, "changes", self.changes));
  }
  // Returns whether the numbers can have come from a measured plan.
  bool is_sane() const;
};

// Returns the policy's score; inserts a new one if there is none. `scores` stay ascending.
PolicyScore& score_of(std::vector<PolicyScore>& scores, PolicyKind policy);

// Adds `seconds` of training under the plan to the account and to the scores of its policies, in
// proportion to their promises, or evenly if there were none. REQUIRES: account.ratio > 0.
void add_seconds(Account& account, double seconds, std::vector<PolicyScore>& scores);

}  // namespace cox
