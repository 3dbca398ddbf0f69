#include "coordinator/decide/policy_score.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/text.h"

namespace cox {
namespace {

double promised_saving(const AppliedChange& change) {
  return change.promised_ratio > 0 ? 1 - change.promised_ratio : 0;
}

}  // namespace

bool is_believable(double amount) {
  constexpr double kLargest = 1e15;
  return amount >= 0 && amount <= kLargest;
}

std::string gain_text(double seconds) {
  constexpr double kShort = 59.95;
  const double size = std::abs(seconds);
  if (size < 0.05) return "0 s";
  const std::string text = size < kShort ? concat(fixed(size, 1), " s") : duration_text(size);
  return seconds < 0 ? concat("-", text) : text;
}

PolicyScore& score_of(std::vector<PolicyScore>& scores, PolicyKind policy) {
  const auto at = std::ranges::lower_bound(scores, policy, {}, &PolicyScore::policy);
  if (at != scores.end() && at->policy == policy) return *at;
  return *scores.insert(at, PolicyScore{policy});
}

void add_seconds(Account& account, double seconds, std::vector<PolicyScore>& scores) {
  const double without = seconds / account.ratio;
  const double saved = without - seconds;
  account.seconds_saved += saved;
  double promises = 0;
  for (const AppliedChange& change : account.changes) {
    promises += std::abs(promised_saving(change));
  }
  for (const AppliedChange& change : account.changes) {
    const double part = promises > 0 ? std::abs(promised_saving(change)) / promises
                                     : 1 / static_cast<double>(account.changes.size());
    PolicyScore& score = score_of(scores, change.kind);
    (saved > 0 ? score.seconds_gained : score.seconds_lost) += std::abs(saved) * part;
    score.seconds_promised += without * promised_saving(change);
  }
}

bool Account::is_sane() const {
  return ratio > 1e-9 && is_believable(ratio) && !changes.empty() &&
         std::ranges::all_of(changes, &AppliedChange::is_sane) &&
         is_believable(std::abs(seconds_saved));
}

bool AppliedChange::is_sane() const {
  return kind <= kLastPolicyKind && is_believable(promised_ratio);
}

bool PolicyScore::is_sane() const {
  return policy <= kLastPolicyKind && is_believable(seconds_gained) &&
         is_believable(seconds_lost) && is_believable(std::abs(seconds_promised));
}

}  // namespace cox
