#include "coordinator/planner/budget_search.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cox::planner {
namespace {

// A stage whose bytes were sent out, and the one sent before it.
struct Departure {
  std::int32_t previous = -1;    // index, -1 = none
  std::int64_t end_us = 0;       // when the copy is through
  std::int64_t total_bytes = 0;  // sent up to and with this one
};

// Label is one set of decisions for the stages so far, reduced to its effects on the remaining
// stages.
//
// Copies out go in order, so the last offloaded stage is back on the device after all others have
// left the device. Only that stage can wait for a copy-out. Bytes can be on their way out only
// before that stage's backward, and compute has not waited before then.
//
// Labels therefore differ in whether further stages will be offloaded. If so, bytes on their way
// out matter to forward passes alone. If not, `need_us` is the added time that later stages must
// bring so that copies end in time, and `floor_us` is the least that the step adds.
struct Label {
  std::int64_t added_us = 0;
  std::int64_t kept_bytes = 0;
  std::int64_t floor_us = 0;
  std::int64_t need_us = 0;
  std::int64_t promise_us = 0;  // lower bound on what the whole step adds
  std::int64_t tier_bytes = 0;
  std::int32_t recomputed = 0;
  std::int32_t departure = -1;  // the newest departure
  std::int32_t trace = -1;      // the newest trace: the decisions behind the label
  bool is_leaving = false;      // the last stage was offloaded and is still being copied
  std::uint8_t action = 0;      // action of the newest stage
  Further further = Further::none;
};

class Departures {
 public:
  std::int32_t add(std::int32_t previous, std::int64_t ready_us, std::int64_t copy_us,
                   std::int64_t bytes) {
    all_.push_back(
        {previous, std::max(ready_us, end_us(previous)) + copy_us, total(previous) + bytes});
    return static_cast<std::int32_t>(all_.size()) - 1;
  }

  // Returns the bytes of the chain up to `newest` that have not left at `time`.
  std::int64_t bytes_after(std::int32_t newest, std::int64_t time) const {
    if (end_us(newest) <= time) return 0;
    std::int32_t i = newest;
    while (i >= 0 && end_us(i) > time) i = previous(i);
    return total(newest) - total(i);
  }

  // Returns the same, less the part that a copy in progress has moved already.
  std::int64_t bytes_to_move(std::int32_t newest, std::int64_t time, std::int64_t per_ms) const {
    if (end_us(newest) <= time) return 0;
    std::int32_t oldest = newest;
    while (end_us(previous(oldest)) > time) oldest = previous(oldest);
    const std::int64_t gone_bytes = total(previous(oldest));
    const std::int64_t bytes = total(oldest) - gone_bytes;
    const std::int64_t remaining_us = end_us(oldest) - time;
    const double movable = static_cast<double>(remaining_us) * static_cast<double>(per_ms) / 1000;
    const bool has_moved = movable < static_cast<double>(bytes);
    return total(newest) - gone_bytes - (has_moved ? bytes - remaining_us * per_ms / 1000 : 0);
  }

  // Returns the earliest time from which at most `room` bytes remain, or 0 if no wait is needed.
  std::int64_t time_within(std::int32_t newest, std::int64_t room) const {
    // Departure `i` must have left if the bytes of `i` and all later departures exceed `room`.
    for (std::int32_t i = newest; i >= 0; i = previous(i)) {
      if (total(newest) - total(previous(i)) > room) return end_us(i);
    }
    return 0;
  }

  std::int64_t end_us(std::int32_t newest) const {
    return newest < 0 ? 0 : all_[index(newest)].end_us;
  }
  std::int32_t previous(std::int32_t newest) const { return all_[index(newest)].previous; }
  // Returns whether a's kept and leaving bytes are no more than b's at every time from `now` on.
  bool never_more(const Label& a, const Label& b, std::int64_t now) const {
    const std::int64_t lead = b.kept_bytes - a.kept_bytes;
    if (lead < 0) return false;
    if (a.departure == b.departure) return true;
    if (bytes_after(a.departure, now) - bytes_after(b.departure, now) > lead) return false;
    for (std::int32_t i = b.departure; end_us(i) > now; i = previous(i)) {
      const std::int64_t time = end_us(i);
      if (bytes_after(a.departure, time) - bytes_after(b.departure, time) > lead) return false;
    }
    return true;
  }

 private:
  std::int64_t total(std::int32_t newest) const {
    return newest < 0 ? 0 : all_[index(newest)].total_bytes;
  }
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::vector<Departure> all_;
};

// Returns whether every completion of `b` completes `a` too, at no higher cost. Both are at the
// same stage.
bool dominates(const Label& a, const Label& b, const StepTables& tables, const Departures& out,
               std::int64_t now) {
  if (a.added_us > b.added_us || a.kept_bytes > b.kept_bytes || a.need_us > b.need_us) return false;
  if (a.floor_us > std::max(b.floor_us, b.added_us)) return false;
  if (tables.is_tier_scarce && a.tier_bytes > b.tier_bytes) return false;
  if (tables.is_recompute_scarce && a.recomputed > b.recomputed) return false;
  if (a.further == Further::offloads &&
      std::max(out.end_us(a.departure), now) > std::max(out.end_us(b.departure), now))
    return false;
  return out.never_more(a, b, now);
}

constexpr std::size_t kCautious = 4;  // one label in this many is kept for its few bytes

// Limits of memory, for any number of stages.
constexpr std::size_t kTreadsPerLabel = 4;
constexpr std::size_t kMostTreads = std::size_t{1} << 20;
constexpr std::size_t kMostLabels = std::size_t{1} << 21;

std::size_t treads_per_stage(const StepTables& tables, std::size_t labels) {
  const std::size_t most = std::max<std::size_t>(64, kMostTreads / tables.problem.stages.size());
  return std::min(kTreadsPerLabel * labels, most);
}

// Sorts dominating labels first: a label never promises more than a label that it dominates.
bool is_ahead(const Label& a, const Label& b) {
  if (a.promise_us != b.promise_us) return a.promise_us < b.promise_us;
  if (a.further != b.further) return a.further < b.further;
  return a.added_us != b.added_us ? a.added_us < b.added_us : a.kept_bytes < b.kept_bytes;
}

std::size_t group_of(const Label& label) {
  return 2 * static_cast<std::size_t>(label.further) + label.is_leaving;
}

struct Trace {
  std::int32_t parent = -1;
  std::uint8_t action = 0;
};

class LabelSearch {
 public:
  LabelSearch(const StepTables& tables, const SearchOrder& order)
      : tables_(tables),
        order_(order),
        bound_(tables, order.budget_bytes, treads_per_stage(tables, order.labels_per_stage)),
        room_(order.budget_bytes - tables.problem.base_bytes),
        below_(order.below_us) {}

  SearchResult run() {
    start();
    for (std::size_t i = 0; i < tables_.problem.stages.size(); ++i) advance(i);
    return finish();
  }

 private:
  void start() {
    for (const Further further : {Further::none, Further::offloads}) {
      Label label;
      label.further = further;
      if (further == Further::offloads && !tables_.can_offload) continue;
      label.promise_us = bound_.added_us(0, Before::resident, further, 0, 0);
      if (label.promise_us < below_) labels_.push_back(label);
    }
  }

  void advance(std::size_t stage) {
    next_.clear();
    for (const Label& from : labels_) {
      if (from.promise_us >= below_) continue;
      for (const std::size_t a : tables_.choices[stage]) extend(stage, from, a);
    }
    thin(stage);
    for (Label& label : labels_) {
      traces_.push_back({label.trace, label.action});
      label.trace = static_cast<std::int32_t>(traces_.size()) - 1;
    }
  }

  void extend(std::size_t stage, const Label& from, std::size_t action) {
    const StageOption& option = tables_.problem.stages[stage].options[action];
    const bool is_offload = option.is_copied();
    if (is_offload && from.further == Further::none) return;
    const std::int64_t leaving = out_.bytes_after(from.departure, tables_.starts_us[stage]);
    if (from.kept_bytes + leaving + option.forward_high_bytes > room_) return;
    Label to = from;
    to.action = static_cast<std::uint8_t>(action);
    to.added_us += option.added_us;
    to.recomputed += is_recompute(static_cast<MemoryAction>(action));
    to.is_leaving = is_offload;
    to.tier_bytes += option.copied_bytes + option.stored_bytes;
    if (tables_.is_tier_scarce && to.tier_bytes > *tables_.problem.tier_bytes) return;
    if (tables_.is_recompute_scarce && to.recomputed > *tables_.problem.most_recomputed) return;
    std::int64_t fetched = 0;
    if (from.is_leaving) {
      to.added_us += tables_.wait_us(stage - 1, action);
      fetched = tables_.problem.stages[stage - 1].options[kOffload].copied_bytes;
    }
    if (from.kept_bytes + fetched + option.backward_high_bytes > room_) return;
    if (is_offload) {
      to.departure = out_.add(from.departure, tables_.starts_us[stage + 1],
                              tables_.copies_us[stage], option.copied_bytes);
      close(stage, from, to);
    } else if (from.further == Further::none) {
      if (!settle(stage, from, option, to)) return;
    }
    to.kept_bytes += option.kept_bytes;
    offer(stage, to);
  }

  // Without further offloads, the bytes still leaving at the start of the backward of `stage` must
  // fit.
  bool settle(std::size_t stage, const Label& from, const StageOption& option, Label& to) const {
    std::int64_t room = room_ - from.kept_bytes - option.backward_high_bytes;
    std::int32_t leaving = from.departure;
    if (from.is_leaving) {  // fetched now, so it counts in full
      room -= tables_.problem.stages[stage - 1].options[kOffload].copied_bytes;
      leaving = out_.previous(leaving);
    }
    const std::int64_t earliest = tables_.starts_us.back() + tables_.backward_after[stage];
    const std::int64_t need = out_.time_within(leaving, room) - earliest;
    to.need_us = std::max({from.need_us - option.added_us, need, std::int64_t{0}});
    return to.need_us <= tables_.added_after[stage];
  }

  // Offers `to` with the stage's offload as the last one of the step.
  void close(std::size_t stage, const Label& from, Label to) {
    to.further = Further::none;
    const StageOption& option = tables_.problem.stages[stage].options[kOffload];
    if (!settle(stage, from, option, to)) return;
    to.need_us = std::max<std::int64_t>(to.need_us, 0);
    const std::int64_t back = out_.end_us(to.departure) + tables_.copies_us[stage];
    const std::int64_t earliest = tables_.starts_us.back() + tables_.backward_after[stage];
    to.floor_us = to.added_us + back - earliest;
    to.kept_bytes += option.kept_bytes;
    offer(stage, to);
  }

  void offer(std::size_t stage, Label to) {
    ++made_;
    const Before before = to.is_leaving ? Before::offloaded : Before::resident;
    const std::int64_t leaving = out_.bytes_to_move(to.departure, tables_.starts_us[stage + 1],
                                                    tables_.problem.copy_bytes_per_ms);
    const std::int64_t rest =
        bound_.added_us(stage + 1, before, to.further, to.kept_bytes, leaving);
    to.promise_us = std::max(to.added_us + rest, to.floor_us);
    if (to.promise_us >= below_) return;
    next_.push_back(to);
    const bool is_truth = to.further == Further::none && to.need_us == 0 && bound_.is_whole() &&
                          !tables_.is_recompute_scarce && !tables_.is_tier_scarce &&
                          out_.end_us(to.departure) <= tables_.starts_us[stage + 1];
    if (is_truth) below_ = to.promise_us + 1;  // the label's promise can be met exactly
  }

  void thin(std::size_t stage) {
    const std::int64_t now = tables_.starts_us[stage + 1];
    std::ranges::sort(next_, is_ahead);
    std::array<std::vector<Label>, 4> groups;
    labels_.clear();
    const std::size_t most = order_.labels_per_stage - order_.labels_per_stage / kCautious;
    auto b = next_.begin();
    for (; b != next_.end() && b->promise_us < below_; ++b) {
      std::vector<Label>& rivals = groups[group_of(*b)];
      const auto beats = [&](const Label& a) { return dominates(a, *b, tables_, out_, now); };
      if (std::ranges::any_of(rivals, beats)) continue;
      if (labels_.size() == most) {
        cut(b, now);
        break;
      }
      rivals.push_back(*b);
      labels_.push_back(*b);
    }
  }

  // Among the less promising labels, keeps those with the fewest bytes. A label with few bytes can
  // be completed under any feasible budget; a label with many bytes may not.
  void cut(std::vector<Label>::iterator first, std::int64_t now) {
    least_cut_ = std::min(least_cut_, first->promise_us);
    const auto load = [&](const Label& label) {
      return label.kept_bytes + out_.bytes_after(label.departure, now);
    };
    const auto is_lighter = [&](const Label& a, const Label& b) {
      const std::int64_t left = load(a);
      const std::int64_t right = load(b);
      return left != right ? left < right : is_ahead(a, b);
    };
    const auto end = std::find_if(first, next_.end(),
                                  [&](const Label& label) { return label.promise_us >= below_; });
    const auto room = static_cast<std::ptrdiff_t>(order_.labels_per_stage - labels_.size());
    const auto last = first + std::min(room, end - first);
    std::partial_sort(first, last, end, is_lighter);
    labels_.insert(labels_.end(), first, last);
  }

  SearchResult finish() const {
    SearchResult result;
    result.labels = made_;
    std::int32_t trace = -1;
    for (const Label& label : labels_) {
      if (label.further == Further::offloads || label.need_us > 0) continue;
      const std::int64_t added = std::max(label.added_us, label.floor_us);
      if (added >= std::min(result.added_us, order_.below_us)) continue;
      result.added_us = added;
      trace = label.trace;
    }
    result.bound_us = std::min({result.added_us, least_cut_, order_.below_us});
    for (; trace >= 0; trace = traces_[static_cast<std::size_t>(trace)].parent)
      result.actions.push_back(
          static_cast<MemoryAction>(traces_[static_cast<std::size_t>(trace)].action));
    std::ranges::reverse(result.actions);
    return result;
  }

  const StepTables& tables_;
  const SearchOrder& order_;
  CompletionBound bound_;
  std::int64_t room_;
  std::int64_t below_;
  std::int64_t least_cut_ = kNever;
  std::size_t made_ = 0;
  Departures out_;
  std::vector<Trace> traces_;
  std::vector<Label> labels_;
  std::vector<Label> next_;
};

}  // namespace

MemoryPoint priced(const MemoryProblem& problem, std::vector<MemoryAction> actions) {
  const ScheduledStep step = schedule(problem, actions);
  return {step.peak_bytes, step.added_us, std::move(actions)};
}

BudgetSearch::BudgetSearch(const MemoryProblem& problem) : tables_(problem) {}

SearchResult BudgetSearch::run(const SearchOrder& order) const {
  return LabelSearch(tables_, order).run();
}

SearchResult BudgetSearch::run_to_proof(SearchOrder order, std::size_t most_labels) const {
  SearchResult best;
  most_labels =
      std::min(most_labels, std::max<std::size_t>(64, kMostLabels / tables_.problem.stages.size()));
  while (true) {
    SearchResult found = run(order);
    found.labels += best.labels;
    found.bound_us = std::max(found.bound_us, best.bound_us);
    if (found.actions.empty()) {
      found.actions = std::move(best.actions);
      found.added_us = best.added_us;
    }
    best = std::move(found);
    if (best.is_proven() || order.labels_per_stage >= most_labels) return best;
    order.below_us = std::min(order.below_us, best.added_us);
    order.labels_per_stage = std::min(8 * order.labels_per_stage, most_labels);
  }
}

std::int64_t boundless(const MemoryProblem& problem) {
  std::int64_t bytes = problem.base_bytes;
  for (const Stage& stage : problem.stages) {
    std::int64_t most = 0;
    for (const StageOption& o : stage.options) {
      if (o.allowed)
        most = std::max(most, std::max(o.forward_high_bytes, o.backward_high_bytes) + o.kept_bytes +
                                  o.copied_bytes);
    }
    bytes += most;
  }
  return bytes;
}

MemoryPoint towards_least(const MemoryProblem& problem, std::size_t most_labels,
                          std::int64_t infeasible_bytes, MemoryPoint point, std::size_t searches) {
  const BudgetSearch search(problem);
  for (std::size_t i = 0; i < searches && infeasible_bytes + 1 < point.peak_bytes; ++i) {
    const std::int64_t middle = infeasible_bytes + (point.peak_bytes - infeasible_bytes) / 2;
    SearchResult found = search.run({middle, kNever, most_labels});
    if (found.actions.empty())
      infeasible_bytes = middle;
    else
      point = priced(problem, std::move(found.actions));
  }
  return point;
}

}  // namespace cox::planner
