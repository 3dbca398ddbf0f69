#include "coordinator/planner/step_graph.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "coordinator/planner/step_improve.h"
#include "coordinator/planner/step_runs.h"
#include "coordinator/planner/step_trial.h"

namespace cox::planner {
namespace {

constexpr std::size_t kTried = 6;    // of the gaps that promise most, at each step of a descent
constexpr std::size_t kStride = 64;  // most that are dropped at once
constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();

using Stays = std::vector<Stay>;

// What was found for one budget.
struct Found {
  std::int64_t ns = kNoTime;
  std::int64_t peak_bytes = 0;
  Stays stays;
  std::vector<Run> runs;  // in place of `stays`, unless empty
};

// What no plan can do without.
std::int64_t least_room(const StepGraph& graph) {
  std::int64_t least = 0;
  for (const StepOperator& it : graph.operators) {
    std::int64_t bytes = 0;
    for (const std::int32_t t : it.makes) bytes += graph.tensors[static_cast<std::size_t>(t)].bytes;
    least = std::max(least, bytes);
  }
  return least;
}

class StepSearch {
 public:
  StepSearch(const StepGraph& graph, std::vector<std::int64_t> budgets, const StepLimits& limits)
      : graph_(graph),
        trial_(graph),
        runs_(graph),
        least_room_(least_room(graph)),
        budgets_(std::move(budgets)),
        limits_(limits),
        found_(budgets_.size()) {
    for (std::int64_t& budget : budgets_) budget -= graph.base_bytes;
  }

  std::vector<StepPlan> run() {
    std::vector<std::size_t> order(budgets_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t b) { return budgets_[b]; });
    Stays stays(trial_.gaps().size(), Stay::keep);
    priced(stays, 0);
    std::vector<std::size_t> left;  // of the work, in the same order
    for (const std::size_t b : order) {
      most_work_ = trial_.work() + limits_.most_work;
      search(budgets_[b], found_[b].ns == kNoTime ? stays : found_[b].stays);
      stays = found_[b].ns == kNoTime ? least_.stays : found_[b].stays;
      left.push_back(is_spent() ? 0 : most_work_ - trial_.work());
    }
    for (std::size_t i = 0; i < order.size(); ++i) improve_runs(order[i], left[i]);
    std::ranges::reverse(order);
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (found_[order[i - 1]].ns < found_[order[i]].ns) found_[order[i]] = found_[order[i - 1]];
    }
    std::vector<StepPlan> plans;
    for (const Found& it : found_) plans.push_back(plan_of(it.ns == kNoTime ? least_ : it));
    return plans;
  }

 private:
  bool is_spent() const { return trial_.work() >= most_work_; }

  StepPrice priced(const Stays& stays, std::int64_t target) {
    const StepPrice price = trial_.price(stays, target);
    for (std::size_t b = 0; b < budgets_.size(); ++b) {
      if (price.peak_bytes <= budgets_[b] && price.ns < found_[b].ns)
        found_[b] = {price.ns, price.peak_bytes, stays, {}};
    }
    if (least_.ns == kNoTime || price.peak_bytes < least_.peak_bytes)
      least_ = {price.ns, price.peak_bytes, stays, {}};
    return price;
  }

  void search(std::int64_t budget, Stays stays) {
    descend(stays, budget);
    fill_up(stays, budget);
  }

  // Starts from what was found for the budget, or else from the least peak.
  void improve_runs(std::size_t budget, std::size_t most_work) {
    Found& found = found_[budget];
    if (found.ns == step_ns(graph_) || budgets_[budget] < least_room_) return;
    const auto runs = runs_of(plan_of(found.ns == kNoTime ? least_ : found).schedule);
    if (!runs) return;
    runs_.assign(*runs, budgets_[budget]);
    const auto improved = improve(runs_, step_ns(graph_), most_work, draws_);
    if (!improved || improved->added_ns + step_ns(graph_) >= found.ns) return;
    found.ns = improved->added_ns + step_ns(graph_);
    found.runs = improved->runs;
  }

  StepPlan plan_of(const Found& found) {
    StepPlan plan;
    if (found.runs.empty()) {
      plan.peak_bytes = trial_.price(found.stays, 0, &plan.schedule).peak_bytes;
    } else {
      runs_.assign(found.runs, 0);
      plan.schedule = runs_.schedule();
      plan.peak_bytes = runs_.peak_bytes();
    }
    plan.peak_bytes += graph_.base_bytes;
    plan.added_ns = found.ns - step_ns(graph_);
    return plan;
  }

  void descend(Stays& stays, std::int64_t budget) {
    const std::size_t half = trial_.work() + limits_.most_work / 2;
    descend_one_by_one(stays, budget, half);
    descend_in_strides(stays, budget);
  }

  // Drops one tensor after the other, each time the one that costs the least time for the bytes
  // that it frees where they are too many.
  void descend_one_by_one(Stays& stays, std::int64_t budget, std::size_t until) {
    StepPrice now = priced(stays, budget);
    while (now.peak_bytes > budget && trial_.work() < until) {
      const std::optional<Change> change = best_change(stays, budget, now);
      if (!change) return;
      stays[change->gap] = change->stay;
      now = priced(stays, budget);
    }
  }

  struct Change {
    std::size_t gap = 0;
    Stay stay = Stay::keep;
  };
  std::optional<Change> best_change(Stays& stays, std::int64_t budget, const StepPrice& now) {
    std::optional<Change> best;
    double least = std::numeric_limits<double>::infinity();
    for (const std::size_t gap : promising(stays, now, kTried)) {
      for (const Stay stay : {Stay::take_along, Stay::drop}) {
        const Stay was = std::exchange(stays[gap], stay);
        const StepPrice price = priced(stays, budget);
        stays[gap] = was;
        if (price.excess >= now.excess) continue;
        const double slope =
            static_cast<double>(price.ns - now.ns + 1) / (now.excess - price.excess);
        if (slope >= least) continue;
        least = slope;
        best = {gap, stay};
      }
    }
    return best;
  }

  // Drops several at once, by what they promise alone: for graphs where single steps are too many.
  void descend_in_strides(Stays& stays, std::int64_t budget) {
    const std::size_t until = trial_.work() + limits_.most_work / 2;
    StepPrice now = priced(stays, budget);
    while (now.peak_bytes > budget && trial_.work() < until) {
      std::int64_t rest = (now.peak_bytes - budget + 3) / 4;
      bool has_changed = false;
      for (const std::size_t gap : promising(stays, now, kStride)) {
        if (rest <= 0) break;
        rest -= graph_.tensors[static_cast<std::size_t>(trial_.gaps()[gap].tensor)].bytes;
        stays[gap] = stays[gap] == Stay::keep ? Stay::take_along : Stay::drop;
        has_changed = true;
      }
      if (!has_changed) return;
      now = priced(stays, budget);
    }
  }

  // The gaps across the peak with the least time to be made again for each byte.
  std::vector<std::size_t> promising(const Stays& stays, const StepPrice& now, std::size_t most) {
    struct Option {
      double cost = 0;
      std::size_t gap = 0;
    };
    std::vector<Option> options;
    const std::vector<Gap>& gaps = trial_.gaps();
    for (std::size_t g = 0; g < gaps.size(); ++g) {
      const auto bytes = graph_.tensors[static_cast<std::size_t>(gaps[g].tensor)].bytes;
      if (gaps[g].from >= now.peak_at || gaps[g].to <= now.peak_at || bytes == 0) continue;
      if (stays[g] == Stay::drop) continue;
      const std::int64_t ns = stays[g] == Stay::keep ? trial_.remake_ns(stays, g) : 0;
      options.push_back({static_cast<double>(ns) / static_cast<double>(bytes), g});
    }
    const std::size_t count = std::min(most, options.size());
    std::ranges::partial_sort(options, options.begin() + static_cast<std::ptrdiff_t>(count), {},
                              &Option::cost);
    std::vector<std::size_t> first;
    for (std::size_t i = 0; i < count; ++i) first.push_back(options[i].gap);
    return first;
  }

  // Keeps what there is room for, first what costs most to make again.
  void fill_up(Stays& stays, std::int64_t budget) {
    StepPrice now = priced(stays, budget);
    if (now.peak_bytes > budget) return;
    std::vector<std::size_t> gaps;
    for (std::size_t g = 0; g < stays.size(); ++g) {
      if (stays[g] != Stay::keep) gaps.push_back(g);
    }
    std::ranges::stable_sort(gaps, std::ranges::greater{},
                             [&](std::size_t g) { return trial_.remake_ns(stays, g); });
    for (const std::size_t gap : gaps) {
      for (const Stay stay : {Stay::keep, Stay::take_along}) {
        if (is_spent() || stays[gap] == stay) break;
        const Stay was = std::exchange(stays[gap], stay);
        const StepPrice price = priced(stays, budget);
        if (price.peak_bytes <= budget && price.ns <= now.ns) {
          now = price;
          break;
        }
        stays[gap] = was;
      }
    }
  }

  const StepGraph& graph_;
  StepTrial trial_;
  StepRuns runs_;
  const std::int64_t least_room_;
  std::vector<std::int64_t> budgets_;  // without base_bytes
  const StepLimits limits_;
  std::size_t most_work_ = 0;
  std::vector<Found> found_;  // for each budget
  Found least_;               // of least peak
  Draws draws_;
};

std::string operator_text(const StepGraph& graph, std::size_t index) {
  return "step graph: operator " + std::to_string(index) + " (" + graph.operators[index].name + ")";
}

bool is_number(std::int64_t value) {
  return value >= 0 && value <= kMaxStepNumber;
}

Status check_sizes(const StepGraph& graph) {
  if (graph.operators.empty() || graph.operators.size() > kMaxStepOperators)
    return invalid_argument("step graph: expected 1 to " + std::to_string(kMaxStepOperators) +
                            " operators, found " + std::to_string(graph.operators.size()));
  if (graph.tensors.size() > kMaxStepTensors)
    return invalid_argument("step graph: expected at most " + std::to_string(kMaxStepTensors) +
                            " tensors, found " + std::to_string(graph.tensors.size()));
  if (!is_number(graph.base_bytes))
    return invalid_argument("step graph: expected base_bytes in range");
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    if (!is_number(graph.tensors[t].bytes))
      return invalid_argument("step graph: tensor " + std::to_string(t) +
                              ": expected bytes in range");
  }
  return ok_status();
}

}  // namespace

Status validate(const StepGraph& graph) {
  if (const Status status = check_sizes(graph); !status.ok()) return status;
  std::vector<bool> is_made(graph.tensors.size());
  const auto is_tensor = [&](std::int32_t t) {
    return t >= 0 && static_cast<std::size_t>(t) < graph.tensors.size();
  };
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const StepOperator& it = graph.operators[i];
    if (!is_number(it.ns))
      return invalid_argument(operator_text(graph, i) + ": expected ns in range");
    for (const std::int32_t t : it.reads) {
      if (!is_tensor(t) || !is_made[static_cast<std::size_t>(t)])
        return invalid_argument(operator_text(graph, i) + ": expected to read tensors that " +
                                "operators before it make, found tensor " + std::to_string(t));
    }
    for (const std::int32_t t : it.makes) {
      if (!is_tensor(t) || is_made[static_cast<std::size_t>(t)])
        return invalid_argument(operator_text(graph, i) + ": expected to make tensors that " +
                                "nobody made before, found tensor " + std::to_string(t));
      is_made[static_cast<std::size_t>(t)] = true;
    }
  }
  const auto missing = std::ranges::find(is_made, false) - is_made.begin();
  if (static_cast<std::size_t>(missing) < is_made.size())
    return invalid_argument("step graph: tensor " + std::to_string(missing) +
                            ": expected an operator that makes it, found none");
  return ok_status();
}

std::int64_t step_ns(const StepGraph& graph) {
  std::int64_t sum = 0;
  for (const StepOperator& it : graph.operators) sum += it.ns;
  return sum;
}

StepPlan keep_all(const StepGraph& graph) {
  StepTrial trial(graph);
  StepPlan plan;
  const StepPrice price = trial.price(Stays(trial.gaps().size(), Stay::keep), 0, &plan.schedule);
  plan.peak_bytes = price.peak_bytes + graph.base_bytes;
  return plan;
}

std::vector<StepPlan> plan_step(const StepGraph& graph, const std::vector<std::int64_t>& budgets,
                                const StepLimits& limits) {
  return StepSearch(graph, budgets, limits).run();
}

}  // namespace cox::planner
