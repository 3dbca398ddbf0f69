#include "coordinator/planner/step_graph.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "coordinator/planner/step_trial.h"

namespace cox::planner {
namespace {

constexpr std::size_t kTried = 6;    // of the gaps that promise most, at each step of a descent
constexpr std::size_t kStride = 64;  // most that are dropped at once
constexpr std::size_t kMovesPerGap = 400;  // of one annealing, at most
constexpr std::size_t kRestarts = 3;       // of the search of a budget
constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();

using Stays = std::vector<Stay>;

// What was found for one budget.
struct Found {
  std::int64_t ns = kNoTime;
  std::int64_t peak_bytes = 0;
  Stays stays;
};

// The same numbers everywhere; quality does not matter much.
class Draws {
 public:
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::size_t>((state_ >> 33) % n);
  }

 private:
  std::uint64_t state_ = 20161906;
};

class StepSearch {
 public:
  StepSearch(const StepGraph& graph, std::vector<std::int64_t> budgets, const StepLimits& limits)
      : graph_(graph),
        trial_(graph),
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
    for (const std::size_t b : order) {
      search(budgets_[b], found_[b].ns == kNoTime ? stays : found_[b].stays);
      stays = found_[b].ns == kNoTime ? least_.stays : found_[b].stays;
    }
    std::vector<StepPlan> plans;
    for (const Found& it : found_) plans.push_back(plan_of(it.ns == kNoTime ? least_ : it));
    return plans;
  }

  StepPlan plan_of(const Found& found) {
    StepPlan plan;
    const StepPrice price = trial_.price(found.stays, 0, &plan.schedule);
    plan.peak_bytes = price.peak_bytes + graph_.base_bytes;
    plan.added_ns = price.ns - step_ns(graph_);
    return plan;
  }

 private:
  bool is_spent() const { return trial_.work() >= most_work_; }

  StepPrice priced(const Stays& stays, std::int64_t target) {
    const StepPrice price = trial_.price(stays, target);
    for (std::size_t b = 0; b < budgets_.size(); ++b) {
      if (price.peak_bytes <= budgets_[b] && price.ns < found_[b].ns)
        found_[b] = {price.ns, price.peak_bytes, stays};
    }
    if (least_.ns == kNoTime || price.peak_bytes < least_.peak_bytes)
      least_ = {price.ns, price.peak_bytes, stays};
    return price;
  }

  void search(std::int64_t budget, Stays stays) {
    most_work_ = trial_.work() + limits_.most_work;
    descend(stays, budget);
    fill_up(stays, budget);
    const auto index = std::ranges::find(budgets_, budget) - budgets_.begin();
    const Found& best = found_[static_cast<std::size_t>(index)];
    const std::size_t moves = kMovesPerGap * trial_.gaps().size() * graph_.operators.size();
    const std::size_t each = std::min(limits_.most_work / (kRestarts + 1), moves);
    for (std::size_t i = 0; i < kRestarts && !is_spent(); ++i) {
      if (best.ns == kNoTime || best.ns == step_ns(graph_)) return;
      anneal(best.stays, budget, trial_.work() + each);
      stays = best.stays;
      fill_up(stays, budget);
    }
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

  // Changes decisions at random, and takes what is not much worse; ever less of that is taken.
  void anneal(Stays stays, std::int64_t budget, std::size_t until) {
    const std::vector<std::size_t> open = open_gaps();
    if (open.empty()) return;
    const auto step = static_cast<double>(step_ns(graph_));
    const double each = 4 * step / static_cast<double>(std::max<std::int64_t>(1, budget));
    const auto cost_of = [&](const StepPrice& price) {
      const auto over = static_cast<double>(std::max<std::int64_t>(0, price.peak_bytes - budget));
      return static_cast<double>(price.ns) + each * over;
    };
    double now = cost_of(priced(stays, budget));
    const std::size_t begun = trial_.work();
    while (trial_.work() < until && !is_spent()) {
      const double part = static_cast<double>(trial_.work() - begun) /
                          static_cast<double>(std::max<std::size_t>(1, until - begun));
      const double worse =
          0.004 * step * (1 - part) * (1 - part) * static_cast<double>(draws_.below(1000)) / 1000;
      const std::size_t gap = open[draws_.below(open.size())];
      const auto stay =
          static_cast<Stay>((static_cast<std::size_t>(stays[gap]) + 1 + draws_.below(2)) % 3);
      const Stay was = std::exchange(stays[gap], stay);
      const double next = cost_of(priced(stays, budget));
      if (next <= now + worse) {
        now = next;
      } else {
        stays[gap] = was;
      }
    }
  }

  // Between neighbours there is nothing to decide.
  std::vector<std::size_t> open_gaps() const {
    std::vector<std::size_t> open;
    const std::vector<Gap>& gaps = trial_.gaps();
    for (std::size_t g = 0; g < gaps.size(); ++g) {
      const bool has_bytes = graph_.tensors[static_cast<std::size_t>(gaps[g].tensor)].bytes > 0;
      if (gaps[g].to > gaps[g].from + 1 && has_bytes) open.push_back(g);
    }
    return open;
  }

  const StepGraph& graph_;
  StepTrial trial_;
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
