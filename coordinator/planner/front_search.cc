// The front of a problem with copies or caps. Searches budgets one by one, next in the widest gap
// between two searched budgets.
#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/planner/budget_search.h"

namespace cox::planner {
namespace {

// A searched budget. No plan within the budget adds less than the bound.
struct Searched {
  std::int64_t budget_bytes = 0;
  std::int64_t bound_us = 0;
  std::int64_t peak_bytes = 0;  // peak of the found plan
};

// A range of budgets that were not searched, from `low` to just below a searched plan's peak.
struct Stretch {
  std::int64_t low_bytes = 0;
  std::int64_t high_bytes = 0;  // the searched plan's peak, excluded
  std::int64_t gap_us = 0;
  std::size_t below = 0;  // index of the searched budget above
};

class FrontSearch {
 public:
  FrontSearch(const MemoryProblem& problem, const FrontLimits& limits, MemoryFront known)
      : problem_(problem), limits_(limits), search_(problem), known_(front_of(std::move(known))) {}

  SolvedFront run() {
    if (!look(0, boundless(problem_))) return std::move(solved_);
    const std::int64_t least = known_.front().peak_bytes;
    if (least < searched_.front().peak_bytes) look(1, least);
    const std::size_t first = std::min(kFirstLabels, limits_.most_labels);
    known_.push_back(towards_least(problem_, first, problem_.base_bytes - 1, known_.front(),
                                   std::max<std::size_t>(1, limits_.most_budgets / 4)));
    known_ = front_of(std::move(known_));
    if (known_.front().peak_bytes < searched_.back().budget_bytes)
      look(searched_.size(), known_.front().peak_bytes);
    Stretch widest = widest_gap();
    while (widest.gap_us > 0 && searched_.size() < limits_.most_budgets &&
           solved_.labels < limits_.most_labels_in_all) {
      look(widest.below + 1, widest.low_bytes + (widest.high_bytes - 1 - widest.low_bytes) / 2);
      widest = widest_gap();
    }
    solved_.gap_us = std::max(widest.gap_us, largest_miss());
    solved_.front = std::move(known_);
    return std::move(solved_);
  }

 private:
  // Searches one budget and inserts the result at `place`. Returns false if nothing fits.
  bool look(std::size_t place, std::int64_t budget_bytes) {
    const std::size_t first = std::min(kFirstLabels, limits_.most_labels);
    const auto seed = lookup(known_, budget_bytes);
    const std::int64_t below = seed ? known_[*seed].added_us : kNever;
    SearchResult found = search_.run_to_proof({budget_bytes, below, first}, limits_.most_labels);
    solved_.labels += found.labels;
    MemoryPoint point;
    if (!found.actions.empty()) {
      point = priced(problem_, std::move(found.actions));
    } else if (seed) {
      point = known_[*seed];
    } else {
      return false;
    }
    searched_.insert(searched_.begin() + static_cast<std::ptrdiff_t>(place),
                     {budget_bytes, found.bound_us, point.peak_bytes});
    known_.push_back(std::move(point));
    known_ = front_of(std::move(known_));
    return true;
  }

  Stretch widest_gap() const {
    Stretch widest;
    for (std::size_t i = 0; i + 1 < searched_.size(); ++i) {
      const std::int64_t low = searched_[i + 1].budget_bytes + 1;
      if (low >= searched_[i].peak_bytes) continue;
      const std::int64_t gap = known_[*lookup(known_, low)].added_us - searched_[i].bound_us;
      if (gap > widest.gap_us) widest = {low, searched_[i].peak_bytes, gap, i};
    }
    return widest;
  }

  // Returns the largest gap of the searches that ended without a proof.
  std::int64_t largest_miss() const {
    std::int64_t miss = 0;
    for (const Searched& s : searched_)
      miss = std::max(miss, known_[*lookup(known_, s.peak_bytes)].added_us - s.bound_us);
    return miss;
  }

  const MemoryProblem& problem_;
  const FrontLimits& limits_;
  BudgetSearch search_;
  MemoryFront known_;
  std::vector<Searched> searched_;  // largest budget first
  SolvedFront solved_;
};

}  // namespace

SolvedFront budget_front(const MemoryProblem& problem, const FrontLimits& limits,
                         MemoryFront known) {
  return FrontSearch(problem, limits, std::move(known)).run();
}

}  // namespace cox::planner
