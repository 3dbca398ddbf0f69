#include "coordinator/core/plan.h"

#include <string>

#include "coordinator/core/plan_classes.h"

namespace cox {

Plan initial_plan(const JobFacts& job) {
  Plan plan;
  plan.id.incarnation = job.incarnation;
  plan.precision.assign(job.blocks.size(), Precision::fp32);
  plan.classes.emplace_back(job.blocks.size(), MemoryAction::keep);
  return plan;
}

ClassId class_of(const Plan& plan, RankId rank) {
  if (plan.rank_class.empty()) return ClassId(0);
  return plan.rank_class[static_cast<std::size_t>(rank.value())];
}

MemoryAction action_of(const Plan& plan, RankId rank, BlockId block) {
  return plan.classes[class_of(plan, rank).value()][block.value()];
}

bool same_effect(const Plan& a, const Plan& b) {
  return a.precision == b.precision && a.shares == b.shares && a.step_samples == b.step_samples &&
         a.cadence_steps == b.cadence_steps && a.scaler == b.scaler &&
         a.hold_until == b.hold_until && a.rollback == b.rollback && same_actions(a, b);
}

}  // namespace cox
