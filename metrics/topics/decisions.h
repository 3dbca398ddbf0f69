// The topic Decisions: the decisions of the policies, their reasons and their measured effects. The
// topic's view is a DecisionsView with the newest reasons and effects, and counts of all. Written
// on the recording thread. Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/decide/policy_score.h"
#include "metrics/histogram.h"
#include "metrics/topic.h"

namespace cox::metrics {

// DecisionEntry is a reason, with the number of times that policies gave the reason from
// `first_round` to `last_round`.
struct DecisionEntry {
  Reason reason;  // the newest wording
  RoundId first_round{};
  RoundId last_round{};
  UnixTime last_time{};
  std::uint64_t count = 1;
  std::uint64_t plan = 0;  // newest published plan when the reason was given
};
using DecisionList = std::vector<std::shared_ptr<const DecisionEntry>>;  // oldest first

struct CodeCount {
  ReasonCode code = ReasonCode::unspecified;
  std::uint64_t count = 0;
};

inline constexpr std::size_t kKinds = static_cast<std::size_t>(kLastPolicyKind) + 1;
inline constexpr std::size_t kOutcomes = kOutcomeNames.size();

// Bounds in seconds on the control path: 10 us .. 1 s.
inline constexpr std::array<double, 16> kControlBuckets = {
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};

struct DecisionsView {
  static constexpr std::size_t kKept = 200;

  std::shared_ptr<const DecisionList> list = std::make_shared<const DecisionList>();  // never null
  std::array<std::array<std::uint64_t, kOutcomes>, kKinds> counts{};
  std::vector<CodeCount> codes;  // ascending codes
  BucketCounts decide_seconds{kControlBuckets};
  std::shared_ptr<const SharedEffects> effects =
      std::make_shared<const SharedEffects>();  // never null
  std::vector<PolicyScore> scores;              // ascending policies

  void add(const Round& round);
};

// Returns `list` with the reasons of `record` added, cut to the newest `capacity` entries. A
// repeated reason that changes nothing becomes one entry with a count, so that rare reasons stay in
// the list.
std::shared_ptr<const DecisionList> extended(const DecisionList& list, const StepRecord& record,
                                             std::size_t capacity);

Topic decisions_topic();

}  // namespace cox::metrics
