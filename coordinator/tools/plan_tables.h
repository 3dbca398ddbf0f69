// What `cox plan PROFILE` prints: for each kind of rank a table of budgets, the action of each
// stage, and the curve of time against budget. Pure text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_profile.h"

namespace cox::tools {

// "5.98 GiB", "512 B".
std::string size_text(std::int64_t bytes);

std::string heading(const planner::RankProfile& profile, const planner::SolvedFront& solved,
                    std::size_t index);
std::string budget_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const std::vector<std::int64_t>& budgets);
std::string action_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const std::vector<std::int64_t>& budgets);
std::string curve(const planner::RankProfile& profile, const MemoryFront& front);

}  // namespace cox::tools
