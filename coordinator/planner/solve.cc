#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/budget_search.h"
#include "coordinator/planner/front.h"

namespace cox::planner {
namespace {

constexpr std::size_t kBoundPlaces = 16;
constexpr std::size_t kSeedPoints = 256;
constexpr std::int64_t kNowhere = std::int64_t{1} << 60;

// ChainFront is the whole front of a problem without copies and caps, from one pass from the last
// stage to the first. Bytes kept before a stage raise all later levels equally. So two numbers
// describe the stages from one on, for any budget: the reach above the level before, and the added
// time. Exact as long as no stage has more points than the limit.
struct ChainFront {
  MemoryFront front;
  bool is_exact = true;    // no point was dropped
  std::size_t labels = 0;  // points made, in all stages
};

// Reach describes the stages from one on: the reach above the level before, and the decisions.
struct Reach {
  std::int64_t bytes = 0;
  std::int64_t added_us = 0;
  std::uint32_t next = 0;  // index among the points of the next stage
  std::uint8_t action = 0;
};

struct Step {
  std::uint32_t next;
  std::uint8_t action;
};

// Lane is the points of the next stage, shifted by one action of this stage.
struct Lane {
  const StageOption* option = nullptr;
  std::uint8_t action = 0;
  std::size_t at = 0;
  std::int64_t bytes = 0;  // reach of the point at `at`
};

std::int64_t high_of(const StageOption& option) {
  return std::max(option.forward_high_bytes, option.backward_high_bytes);
}

bool is_no_better(const StageOption& a, const StageOption& b) {
  return a.kept_bytes >= b.kept_bytes && high_of(a) >= high_of(b) && a.added_us >= b.added_us;
}

// Computes a ChainFront without offload. The front is empty if a stage allows no other action.
class ChainPass {
 public:
  // REQUIRES: a valid problem; most_points >= 2.
  ChainPass(const MemoryProblem& problem, std::size_t most_points)
      : problem_(problem), most_points_(most_points), steps_(problem.stages.size()) {}

  ChainFront run() {
    points_ = {{-kNowhere, 0, 0, 0}};  // bytes kept by the last stage affect no later stage
    for (std::size_t i = problem_.stages.size(); i-- > 0;) {
      extend(problem_.stages[i]);
      if (points_.size() > most_points_) drop();
      result_.labels += points_.size();
      for (const Reach& p : points_) steps_[i].push_back({p.next, p.action});
    }
    for (std::size_t i = 0; i < points_.size(); ++i) result_.front.push_back(point(i));
    return std::move(result_);
  }

 private:
  void place(Lane& lane) const {
    const StageOption& option = *lane.option;
    const std::int64_t high = high_of(option);
    if (lane.at >= points_.size()) return;
    // Only the last, the cheapest, of the points below the stage's own high-water mark matters.
    while (lane.at + 1 < points_.size() && points_[lane.at + 1].bytes + option.kept_bytes <= high)
      ++lane.at;
    lane.bytes = std::max(high, option.kept_bytes + points_[lane.at].bytes);
  }

  std::vector<Lane> lanes_of(const Stage& stage) const {
    std::vector<Lane> lanes;
    for (const MemoryAction action : kActionsInOrder) {
      const StageOption& option = stage.option(action);
      if (!option.allowed || option.is_copied()) continue;
      const auto beats = [&](const Lane& lane) { return is_no_better(option, *lane.option); };
      if (std::ranges::any_of(lanes, beats)) continue;
      std::erase_if(lanes, [&](const Lane& lane) { return is_no_better(*lane.option, option); });
      lanes.push_back({&option, static_cast<std::uint8_t>(action), 0, 0});
      place(lanes.back());
    }
    return lanes;
  }

  // Merges the lanes by bytes and keeps each point that is cheaper than all before it.
  void extend(const Stage& stage) {
    std::vector<Lane> lanes = lanes_of(stage);
    next_.clear();
    while (true) {
      Lane* least = nullptr;
      for (Lane& lane : lanes) {
        if (lane.at >= points_.size()) continue;
        if (!least || lane.bytes < least->bytes ||
            (lane.bytes == least->bytes && added(lane) < added(*least)))
          least = &lane;
      }
      if (!least) break;
      if (next_.empty() || added(*least) < next_.back().added_us)
        next_.push_back(
            {least->bytes, added(*least), static_cast<std::uint32_t>(least->at), least->action});
      ++least->at;
      place(*least);
    }
    points_.swap(next_);
  }

  std::int64_t added(const Lane& lane) const {
    return points_[lane.at].added_us + lane.option->added_us;
  }

  // Keeps one point per band of bytes: the nearest to the line between the ends.
  void drop() {
    result_.is_exact = false;
    const Reach first = points_.front();
    const Reach last = points_.back();
    const double span = static_cast<double>(last.bytes - first.bytes) + 1;
    const double slope = static_cast<double>(first.added_us - last.added_us) / span;
    const double bands = static_cast<double>(most_points_ - 2);
    const auto lean = [&](const Reach& p) {
      return static_cast<double>(p.added_us) + slope * static_cast<double>(p.bytes - first.bytes);
    };
    next_ = {first};
    std::size_t band = 0;
    for (std::size_t i = 1; i + 1 < points_.size(); ++i) {
      const double part = static_cast<double>(points_[i].bytes - first.bytes) / span;
      const std::size_t own = 1 + static_cast<std::size_t>(bands * part);
      if (own != band)
        next_.push_back(points_[i]);
      else if (lean(points_[i]) < lean(next_.back()))
        next_.back() = points_[i];
      band = own;
    }
    next_.push_back(last);
    points_.swap(next_);
  }

  MemoryPoint point(std::size_t index) const {
    MemoryPoint out{problem_.base_bytes + points_[index].bytes, points_[index].added_us, {}};
    out.actions.reserve(steps_.size());
    for (const std::vector<Step>& steps : steps_) {
      out.actions.push_back(static_cast<MemoryAction>(steps[index].action));
      index = steps[index].next;
    }
    return out;
  }

  const MemoryProblem& problem_;
  std::size_t most_points_;
  std::vector<std::vector<Step>> steps_;
  std::vector<Reach> points_;
  std::vector<Reach> next_;
  ChainFront result_;
};

constexpr std::size_t kTieLabels = std::size_t{1} << 22;  // in all; then the current plan stays

// TieBreaker selects among plans of equal time the one with the least peak, and of those the first
// in the order of kActionsInOrder from stage 0 on. Answers thus do not depend on the search's path.
class TieBreaker {
 public:
  // REQUIRES: `point` is a permitted plan of the problem, priced by schedule().
  TieBreaker(const MemoryProblem& problem, MemoryPoint point, std::size_t labels_per_stage)
      : problem_(problem), point_(std::move(point)), labels_per_stage_(labels_per_stage) {}

  MemoryPoint run() {
    lower_peak();
    for (std::size_t i = 0; i < problem_.stages.size() && !is_spent(); ++i) settle(i);
    return std::move(point_);
  }

 private:
  bool is_spent() const { return labels_ >= kTieLabels; }

  // Replaces the plan with one within the budget that adds no more time, if there is one.
  bool improve(std::int64_t budget_bytes) {
    const BudgetSearch search(problem_);
    const std::size_t first = std::min(kFirstLabels, labels_per_stage_);
    SearchResult found =
        search.run_to_proof({budget_bytes, point_.added_us + 1, first}, labels_per_stage_);
    labels_ += found.labels;
    if (found.actions.empty()) return false;
    point_ = priced(problem_, std::move(found.actions));
    return true;
  }

  void lower_peak() {
    std::int64_t low = problem_.base_bytes - 1;
    while (low + 1 < point_.peak_bytes && !is_spent()) {
      const std::int64_t middle = low + (point_.peak_bytes - low) / 2;
      if (!improve(middle)) low = middle;
    }
  }

  // Fixes the first action of the stage under which a plan stays as good.
  void settle(std::size_t stage) {
    std::array<StageOption, kActions>& options = problem_.stages[stage].options;
    const std::array<StageOption, kActions> all = options;
    const auto only = [&](std::size_t action) {
      for (std::size_t a = 0; a < kActions; ++a) options[a].allowed = a == action;
    };
    for (const MemoryAction action : kActionsInOrder) {
      if (action == point_.actions[stage]) break;
      const auto a = static_cast<std::size_t>(action);
      if (!all[a].allowed) continue;
      only(a);
      if (improve(point_.peak_bytes)) break;
    }
    only(static_cast<std::size_t>(point_.actions[stage]));
  }

  MemoryProblem problem_;  // more of its stages are fixed over time
  MemoryPoint point_;
  std::size_t labels_per_stage_;
  std::size_t labels_ = 0;
};

Status no_plan_at_all() {
  return failed_precondition(
      "memory problem: expected at least one plan within its caps, found none: raise tier_bytes "
      "or most_recomputed, or allow keep in more stages");
}

// Returns the most time that the front may miss, over all budgets. A budget between two points uses
// the lower one.
std::int64_t gap_to(const LinearBound& bound, const MemoryFront& front) {
  std::int64_t gap = 0;
  for (std::size_t i = 0; i + 1 < front.size(); ++i)
    gap = std::max(gap, front[i].added_us - bound.added_us(front[i + 1].peak_bytes - 1));
  return gap;
}

SolvedFront from_chain(const MemoryProblem& problem, ChainFront chain) {
  SolvedFront solved{std::move(chain.front), 0, chain.labels};
  if (!chain.is_exact) solved.gap_us = gap_to(LinearBound(problem, kBoundPlaces), solved.front);
  return solved;
}

void drop_beyond_caps(const MemoryProblem& problem, MemoryFront& front) {
  std::erase_if(front, [&](const MemoryPoint& p) { return !is_permitted(problem, p.actions); });
}

Status check(const MemoryProblem& problem, const FrontLimits& limits) {
  if (limits.most_points < 2 || limits.most_budgets < 1 || limits.most_labels < 1)
    return invalid_argument(
        "planner: expected most_points >= 2, most_budgets and most_labels >= 1");
  return validate(problem);
}

// Searches more widely after a narrow search. Starts from the best plan without copies if that plan
// is better than the narrow search's.
SearchResult improved(const MemoryProblem& problem, const BudgetSearch& search,
                      std::int64_t budget_bytes, std::size_t most_labels, SearchResult found) {
  ChainFront chain = ChainPass(problem, kSeedPoints).run();
  drop_beyond_caps(problem, chain.front);
  const auto seed = lookup(chain.front, budget_bytes);
  if (seed && chain.front[*seed].added_us < found.added_us) {
    found.added_us = chain.front[*seed].added_us;
    found.actions = std::move(chain.front[*seed].actions);
  }
  const std::size_t next = std::min(8 * kFirstLabels, most_labels);
  if (found.is_proven() || most_labels <= kFirstLabels) return found;
  SearchResult wider = search.run_to_proof({budget_bytes, found.added_us, next}, most_labels);
  wider.labels += found.labels;
  wider.bound_us = std::max(wider.bound_us, found.bound_us);
  if (!wider.actions.empty()) return wider;
  wider.added_us = found.added_us;
  wider.actions = std::move(found.actions);
  return wider;
}

}  // namespace

Result<SolvedFront> solve_front(const MemoryProblem& problem, const FrontLimits& limits) {
  if (const Status status = check(problem, limits); !status.ok()) return status;
  const StepTables tables(problem);
  ChainFront chain = ChainPass(problem, limits.most_points).run();
  if (!tables.can_offload && !tables.is_recompute_scarce && !tables.is_tier_scarce)
    return from_chain(problem, std::move(chain));
  drop_beyond_caps(problem, chain.front);
  SolvedFront solved = budget_front(problem, limits, std::move(chain.front));
  if (solved.front.empty()) return no_plan_at_all();
  solved.labels += chain.labels;
  return solved;
}

Result<BudgetAnswer> solve_budget(const MemoryProblem& problem, std::int64_t budget_bytes,
                                  std::size_t most_labels, TieBreak tie_break) {
  if (const Status status = validate(problem); !status.ok()) return status;
  budget_bytes = std::clamp<std::int64_t>(budget_bytes, -1, boundless(problem));
  const BudgetSearch search(problem);
  const std::size_t first = std::min(kFirstLabels, most_labels);
  SearchResult found = search.run_to_proof({budget_bytes, kNever, first}, first);
  if (!found.is_proven()) found = improved(problem, search, budget_bytes, most_labels, found);
  BudgetAnswer answer;
  answer.bound_us = found.bound_us;
  answer.labels = found.labels;
  const bool fits = !found.actions.empty();
  if (!fits) found = search.run_to_proof({boundless(problem), kNever, first}, most_labels);
  if (found.actions.empty()) return no_plan_at_all();
  MemoryPoint point = priced(problem, std::move(found.actions));
  if (!fits) {
    point = towards_least(problem, most_labels, budget_bytes, std::move(point), 64);
  } else if (tie_break == TieBreak::named && answer.bound_us >= point.added_us) {
    point = TieBreaker(problem, std::move(point), most_labels).run();
  }
  answer.least_peak_bytes = point.peak_bytes;
  if (fits) answer.best = std::move(point);
  return answer;
}

}  // namespace cox::planner
