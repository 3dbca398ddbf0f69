#include "metrics/decision_log.h"

#include <algorithm>

namespace cox::metrics {
namespace {

constexpr std::size_t kLookBack = 16;  // entries searched for the same reason

bool same_matter(const Reason& a, const Reason& b) {
  return a.policy == b.policy && a.code == b.code && a.outcome == b.outcome && a.rank == b.rank &&
         a.block == b.block;
}

// The entry that `reason` repeats: the same matter, in the round before or in this one.
DecisionList::iterator repeated(DecisionList& list, const Reason& reason, RoundId round) {
  const std::size_t steps = std::min(list.size(), kLookBack);
  for (std::size_t back = 1; back <= steps; ++back) {
    const auto at = list.end() - static_cast<std::ptrdiff_t>(back);
    if (same_matter((*at)->reason, reason) && (*at)->last_round.value() + 1 >= round.value())
      return at;
  }
  return list.end();
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
      *same = std::make_shared<const DecisionEntry>(std::move(entry));
    } else {
      out->push_back(std::make_shared<const DecisionEntry>(std::move(entry)));
    }
  }
  if (out->size() > capacity)
    out->erase(out->begin(), out->end() - static_cast<std::ptrdiff_t>(capacity));
  return out;
}

}  // namespace cox::metrics
