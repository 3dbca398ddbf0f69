#include "tests/planner/random_problem.h"

#include <algorithm>

#include "coordinator/planner/memory_problem.h"

namespace cox::test {
namespace {

constexpr auto kOffload = static_cast<std::size_t>(MemoryAction::offload);

std::int64_t draw(testing::Random& random, std::int64_t below) {
  return static_cast<std::int64_t>(
      random.below(static_cast<std::uint64_t>(std::max<std::int64_t>(1, below))));
}

Stage wild_stage(testing::Random& random, std::int64_t bytes, std::int64_t time, bool has_tier) {
  Stage stage;
  stage.forward_us = draw(random, time);
  stage.backward_us = draw(random, 2 * time);
  for (std::size_t a = 0; a < kMemoryKinds; ++a) {
    StageOption& o = stage.options[a];
    o.allowed = random.chance(a == 0 ? 0.9 : 0.7) && (has_tier || a != kOffload);
    o.kept_bytes = draw(random, a == 0 ? bytes : bytes / 3 + 1);
    o.forward_high_bytes = draw(random, bytes);
    o.backward_high_bytes = draw(random, bytes);
    o.added_us = a == 0 && random.chance(0.9) ? 0 : draw(random, time);
    if (a == kOffload) (random.chance(0.6) ? o.copied_bytes : o.stored_bytes) = draw(random, bytes);
  }
  const auto is_allowed = [](const StageOption& o) { return o.allowed; };
  if (std::none_of(stage.options.begin(), stage.options.end(), is_allowed))
    stage.options[0].allowed = true;
  return stage;
}

// Unordered levels: a heavier level may keep more and take less time.
void add_wild_levels(testing::Random& random, std::int64_t bytes, std::int64_t time, Stage& stage) {
  for (unsigned n = 1; n <= kRecomputeLevels; ++n) {
    if (random.chance(0.7)) continue;
    StageOption& o = stage.options[static_cast<std::size_t>(recompute_level(n))];
    o.allowed = true;
    o.kept_bytes = draw(random, bytes / 2 + 1);
    o.forward_high_bytes = draw(random, bytes);
    o.backward_high_bytes = draw(random, bytes);
    o.added_us = draw(random, time / 2 + 1);
  }
}

Stage block(testing::Random& random, std::int64_t interior, std::int64_t forward, Copies copies) {
  const std::int64_t edge = interior / 12 + 1;
  const std::int64_t work = draw(random, interior / 4) + edge;
  Stage stage;
  stage.forward_us = forward;
  stage.backward_us = forward + draw(random, 2 * forward);
  const std::int64_t forward_high = edge + interior + work;
  const std::int64_t backward_high = 2 * edge + interior + 2 * work;
  stage.options[0] = {true, edge + interior, forward_high, backward_high, 0, 0};
  stage.options[1] = {true, edge, edge + work, backward_high + work, forward, 0};
  stage.options[3] = {true,          edge + interior / 2, edge + interior / 2 + work,
                      backward_high, forward / 3,         0};
  if (copies == Copies::some)
    stage.options[kOffload] = {true, edge, forward_high, backward_high, 0, interior};
  return stage;
}

void add_levels(testing::Random& random, Stage& block) {
  const StageOption& keep = block.option(MemoryAction::keep);
  const StageOption& full = block.option(MemoryAction::recompute);
  const auto levels = 3 + static_cast<std::int64_t>(random.below(5));
  for (std::int64_t n = 1; n <= levels; ++n) {
    const std::int64_t dropped = (keep.kept_bytes - full.kept_bytes) * n / (levels + 1);
    StageOption o = full;
    o.kept_bytes = keep.kept_bytes - dropped + draw(random, keep.kept_bytes / 50);
    o.forward_high_bytes = keep.forward_high_bytes - dropped / 2;
    o.added_us = full.added_us * n * n / (levels + 1) / (levels + 1) + draw(random, 30);
    block.options[static_cast<std::size_t>(recompute_level(static_cast<unsigned>(n)))] = o;
  }
}

// Adds all plans that begin with the first `decided` of the actions.
void add_plans(const MemoryProblem& problem, std::size_t decided,
               std::vector<MemoryAction>& actions, std::vector<PricedPlan>& plans) {
  if (decided == actions.size()) {
    if (!planner::is_permitted(problem, actions)) return;
    const planner::ScheduledStep step = planner::schedule(problem, actions);
    plans.push_back({step.peak_bytes, step.added_us});
    return;
  }
  for (const MemoryAction action : kActionsInOrder) {
    if (!problem.stages[decided].option(action).allowed) continue;
    actions[decided] = action;
    add_plans(problem, decided + 1, actions, plans);
  }
}

}  // namespace

MemoryProblem wild_problem(testing::Random& random, std::size_t stages, Copies copies, Caps caps,
                           Levels levels) {
  const std::int64_t bytes = 1 + draw(random, 30);
  const std::int64_t time = 1 + draw(random, 30);
  MemoryProblem problem;
  problem.base_bytes = draw(random, 10);
  if (copies == Copies::some)
    problem.copy_bytes_per_ms = (100 + draw(random, 4000)) * (random.chance(0.3) ? 20 : 1);
  for (std::size_t i = 0; i < stages; ++i)
    problem.stages.push_back(wild_stage(random, bytes, time, copies == Copies::some));
  if (levels == Levels::some) {
    for (Stage& stage : problem.stages) add_wild_levels(random, bytes, time, stage);
  }
  const auto count = static_cast<std::int64_t>(stages);
  if (caps == Caps::maybe && random.chance(0.4))
    problem.tier_bytes = draw(random, bytes * count / 2 + 1);
  if (caps == Caps::maybe && random.chance(0.4))
    problem.most_recomputed = static_cast<std::int32_t>(draw(random, count));
  return problem;
}

MemoryProblem block_chain(testing::Random& random, std::size_t blocks, Copies copies,
                          Levels levels) {
  MemoryProblem problem;
  problem.base_bytes = 1000 + draw(random, 100'000);
  const bool is_even = random.chance(0.3);
  const std::int64_t interior = 1000 + draw(random, 50'000);
  const std::int64_t forward = 300 + draw(random, 5000);
  std::int64_t bytes = 0;
  std::int64_t time = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::int64_t own = is_even ? interior : interior / 2 + draw(random, interior);
    problem.stages.push_back(
        block(random, own, is_even ? forward : forward / 2 + draw(random, forward), copies));
    problem.stages.back().block = static_cast<std::int32_t>(i);
    if (levels == Levels::some) add_levels(random, problem.stages.back());
    bytes += own;
    time += problem.stages.back().forward_us;
    Stage gap;
    gap.forward_us = 10;
    gap.backward_us = 20;
    gap.options[0] = {true, draw(random, 50), draw(random, 200) + 50, draw(random, 200) + 50, 0, 0};
    problem.stages.push_back(gap);
  }
  if (copies == Copies::some)
    problem.copy_bytes_per_ms = 1 + bytes * 1000 / time * (1 + draw(random, 12)) / 8;
  return problem;
}

std::vector<PricedPlan> all_plans(const MemoryProblem& problem) {
  std::vector<PricedPlan> plans;
  std::vector<MemoryAction> actions(problem.stages.size());
  add_plans(problem, 0, actions, plans);
  return plans;
}

std::int64_t least_added(const std::vector<PricedPlan>& plans, std::int64_t budget_bytes) {
  std::int64_t least = -1;
  for (const PricedPlan& p : plans) {
    if (p.peak_bytes <= budget_bytes && (least < 0 || p.added_us < least)) least = p.added_us;
  }
  return least;
}

}  // namespace cox::test
