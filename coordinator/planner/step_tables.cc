#include "coordinator/planner/step_tables.h"

#include <algorithm>

#include "coordinator/planner/memory_schedule.h"

namespace cox::planner {

StepTables::StepTables(const MemoryProblem& given) : problem(given) {
  const std::size_t n = problem.stages.size();
  starts_us.assign(n + 1, 0);
  copies_us.assign(n, 0);
  backward_after.assign(n, 0);
  added_after.assign(n, 0);
  std::int64_t copied = 0;
  std::int32_t recomputable = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Stage& stage = problem.stages[i];
    starts_us[i + 1] = starts_us[i] + stage.forward_us;
    recomputable += stage.options[kRecompute].allowed;
    const StageOption& offload = stage.options[kOffload];
    if (!offload.allowed) continue;
    copied += offload.copied_bytes + offload.stored_bytes;
    if (!offload.is_copied()) continue;
    copies_us[i] = copy_us(offload.copied_bytes, problem.copy_bytes_per_ms);
    can_offload = true;
  }
  constexpr double kMost = 0x1p60;
  is_rate_exact = static_cast<double>(problem.copy_bytes_per_ms) *
                      (static_cast<double>(starts_us[n]) / 1000 + 1) <
                  kMost;
  for (std::size_t i = n; i-- > 1;) {
    const Stage& stage = problem.stages[i];
    std::int64_t most = 0;
    for (std::size_t a = 0; a < kActions; ++a) {
      if (stage.options[a].allowed && !stage.options[a].is_copied())
        most = std::max(most, stage.options[a].added_us);
    }
    backward_after[i - 1] = backward_after[i] + stage.backward_us;
    added_after[i - 1] = added_after[i] + most;
  }
  is_tier_scarce = problem.tier_bytes.value_or(copied) < copied;
  is_recompute_scarce = problem.most_recomputed.value_or(recomputable) < recomputable;
}

std::int64_t StepTables::work_us(std::size_t stage, std::size_t action) const {
  const Stage& s = problem.stages[stage];
  return s.backward_us + s.options[action].added_us;
}

std::int64_t StepTables::wait_us(std::size_t stage, std::size_t action_behind) const {
  return std::max<std::int64_t>(0, copies_us[stage] - work_us(stage + 1, action_behind));
}

std::int64_t StepTables::carried_bytes(std::size_t stage, Round round) const {
  const std::int64_t whole_ms = starts_us[stage] / 1000;
  const std::int64_t rest = starts_us[stage] % 1000 * problem.copy_bytes_per_ms;
  return whole_ms * problem.copy_bytes_per_ms + (rest + (round == Round::up ? 999 : 0)) / 1000;
}

}  // namespace cox::planner
