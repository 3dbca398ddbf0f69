#include "metrics/decision_log.h"

#include <algorithm>

namespace cox::metrics {
namespace {

constexpr std::uint64_t kMemoryRounds = 256;  // after a longer silence it is news again

bool same_matter(const Reason& a, const Reason& b) {
  return a.policy == b.policy && a.code == b.code && a.outcome == b.outcome && a.rank == b.rank &&
         a.block == b.block;
}

// Changes are told one by one; everything else once, with a count.
bool may_repeat(Outcome outcome) {
  return outcome != Outcome::changed && outcome != Outcome::clamped;
}

// The entry that `reason` repeats, or end().
DecisionList::iterator repeated(DecisionList& list, const Reason& reason, RoundId round) {
  if (!may_repeat(reason.outcome)) return list.end();
  return std::find_if(list.begin(), list.end(), [&](const auto& entry) {
    return same_matter(entry->reason, reason) &&
           entry->last_round.value() + kMemoryRounds >= round.value();
  });
}

}  // namespace

std::shared_ptr<const DecisionList> extended(const DecisionList& list, const StepRecord& record,
                                             std::size_t capacity) {
  auto out = std::make_shared<DecisionList>(list);
  for (const Reason& reason : record.decision.reasons) {
    const RoundId round = record.signals.round;
    DecisionEntry entry{reason, round, round, record.signals.now, 1, record.plan.id.number};
    const auto same = repeated(*out, reason, round);
    if (same != out->end()) {
      entry.first_round = (*same)->first_round;
      entry.count = (*same)->count + 1;
      out->erase(same);
    }
    out->push_back(std::make_shared<const DecisionEntry>(std::move(entry)));
  }
  if (out->size() > capacity)
    out->erase(out->begin(), out->end() - static_cast<std::ptrdiff_t>(capacity));
  return out;
}

}  // namespace cox::metrics
