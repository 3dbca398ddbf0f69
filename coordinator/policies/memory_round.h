// One round of policy `memory` before it speaks: learns from the reports what is real (peaks,
// failures, who is slow), and chooses a point of its front for every rank. Made for one call of the
// policy; its input must outlive it. Nothing is learnt from a round without reports.
//
// Learnt of a rank from each report that covers rounds under the newest plan only:
//   correction   real minus predicted peak: up at once, down by a sixteenth of the difference
//   ceiling      the predicted peak of a plan that was measured above the budget
//   straggler    own time against the median of all (three ranks or more), smoothed over 8 rounds:
//                from twice the excess of stragglers.slowdown_ratio until below that ratio
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/policies/memory_budget.h"
#include "coordinator/policies/memory_choice.h"
#include "coordinator/policies/memory_notes.h"

namespace cox {

// An action that failed, or that has rested.
struct ActionEvent {
  RankId rank{-1};
  std::size_t block = 0;
  MemoryAction action = MemoryAction::keep;
  std::string what;  // of a failure
};

struct RankView {
  const MemoryModel* model = nullptr;
  const MemoryFront* front = nullptr;  // what may be used of the model's
  ClassId now_class{};
  std::optional<MemoryCost> now;  // of the plan in force, predicted
  RankBudget budget;
  bool turned_straggler = false;  // in this round
  RankPlace place;
  Choice choice;
};

class MemoryRound {
 public:
  // Requires: facts of memory that fit the job (facts_fit).
  MemoryRound(const PolicyInput& input, MemoryNotes& notes);

  const std::vector<RankView>& ranks() const { return views_; }
  const std::vector<ActionSet>& allowed() const { return allowed_; }  // per block
  const std::vector<ActionEvent>& failed() const { return failed_; }  // new ones
  const std::vector<ActionEvent>& rested() const { return rested_; }

 private:
  void learn_failures();
  void find_allowed();
  void find_fronts();
  void view_ranks();
  void learn_peaks();
  void learn_peak(const RankSignal& report);
  void learn_times();
  void set_budget(std::size_t rank);
  void choose_all();

  const PolicyInput& input_;
  MemoryNotes& notes_;
  std::uint64_t round_;
  std::vector<ActionSet> allowed_;
  std::vector<MemoryFront> made_;           // fronts that differ from their model's
  std::vector<const MemoryFront*> fronts_;  // per model
  std::vector<RankView> views_;
  std::vector<ActionEvent> failed_;
  std::vector<ActionEvent> rested_;
};

// Whether the facts have the shape of the job; linear in points. What is inside was validated.
bool facts_fit(const JobFacts& job);

}  // namespace cox
