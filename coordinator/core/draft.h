// Draft: the plan of a round while Decide works on it. Takes proposals one after another, applies
// or withholds each, and keeps the reasons of both. One draft per round; no shared state.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/said_before.h"
#include "coordinator/core/summary.h"

namespace cox {

// A policy in the order of this round.
struct Asked {
  PolicyKind kind = PolicyKind::none;
  PolicyMode mode = PolicyMode::on;
  std::size_t place = 0;
};

class Draft {
 public:
  // References must outlive the draft.
  Draft(const JobFacts& job, const Config& config, const Plan& newest, const StepSummary& summary);

  // Takes what a policy proposes, and reasons that are already withheld (a failure of the policy).
  void take(const Asked& asked, std::vector<Proposal> proposals, std::vector<Reason> withheld,
            SaidBefore& said);

  // What the user forces wins over every policy.
  void apply_overrides(SaidBefore& said);

  // The next plan, when the draft has another effect than the newest one. Ends the draft.
  std::optional<Plan> finish() &&;

  bool nobody_applies() const { return nobody_applies_; }
  std::vector<Reason>& reasons() { return reasons_; }

 private:
  Outcome judge(const Proposal& proposal, PolicyMode mode, Reason& reason);
  bool is_withheld_from_all(Reason& reason) const;

  const JobFacts& job_;
  const Config& config_;
  const Plan& newest_;
  RoundId round_;
  bool in_flight_;
  bool nobody_applies_;
  Plan plan_;
  std::vector<Reason> reasons_;
};

}  // namespace cox
