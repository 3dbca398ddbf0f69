// Memory actions of two plans side by side. Classes are only a way to write down what each rank
// does, so two plans may differ in classes and still ask the same of every rank. Pure functions.
#pragma once

#include <vector>

#include "coordinator/core/plan.h"

namespace cox {

// The class of a rank. Requires: a valid plan, a rank of its world.
ClassId class_of(const Plan& plan, RankId rank);

// Ranks that change from one list of actions to another.
struct ClassMove {
  ClassId before{};
  ClassId after{};
  std::vector<RankId> ranks;  // ascending; empty = all (both plans have one class for all)
};

// Every pair of classes that some rank moves between, in order of (before, after); pairs with equal
// actions are included. Requires: both plans valid for the same job.
std::vector<ClassMove> class_moves(const Plan& before, const Plan& after);

// Whether every rank has the same memory actions under both plans.
bool same_actions(const Plan& a, const Plan& b);

}  // namespace cox
