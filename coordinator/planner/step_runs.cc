#include "coordinator/planner/step_runs.h"

#include <algorithm>

namespace cox::planner {

std::optional<std::vector<Run>> runs_of(const std::vector<StepAction>& schedule) {
  std::vector<Run> runs;
  std::int32_t turn = 0;
  for (const StepAction& action : schedule) {
    if (action.kind != StepAction::Kind::run) continue;
    runs.push_back({turn, action.index});
    if (action.index == turn) ++turn;
  }
  std::ranges::sort(runs);
  if (std::ranges::adjacent_find(runs) != runs.end()) return std::nullopt;
  return runs;
}

StepRuns::StepRuns(const StepGraph& graph)
    : graph_(graph), makers_(graph.tensors.size()), uses_(graph.tensors.size()) {
  std::vector<Run> once;
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const auto op = static_cast<std::int32_t>(i);
    std::vector<std::int32_t> reads = graph.operators[i].reads;
    std::ranges::sort(reads);
    const auto twice = std::ranges::unique(reads);
    reads.erase(twice.begin(), twice.end());
    reads_.push_back(std::move(reads));
    made_bytes_.push_back(0);
    for (const std::int32_t t : graph.operators[i].makes) {
      makers_[at(t)] = op;
      made_bytes_.back() += graph.tensors[at(t)].bytes;
    }
    once.push_back({op, op});
  }
  assign(once, 0);
}

void StepRuns::assign(const std::vector<Run>& runs, std::int64_t room_bytes) {
  room_ = room_bytes;
  runs_ = runs;
  bytes_.clear();
  excess_ = added_ns_ = 0;
  for (std::vector<Run>& uses : uses_) uses.clear();
  for (const Run& run : runs_) {
    const StepOperator& it = graph_.operators[at(run.op)];
    bytes_.push_back(made_bytes_[at(run.op)]);
    excess_ += above(bytes_.back());
    if (!run.is_first()) added_ns_ += it.ns;
    for (const std::int32_t t : it.makes) uses_[at(t)].push_back(run);
    for (const std::int32_t t : reads(run.op)) uses_[at(t)].push_back(run);
  }
  for (std::size_t t = 0; t < uses_.size(); ++t) {
    const auto tensor = static_cast<std::int32_t>(t);
    for (std::size_t i = 0; i + 1 < uses_[t].size(); ++i) {
      if (is_needed(tensor, uses_[t][i + 1]))
        add(uses_[t][i], position(uses_[t][i + 1]), graph_.tensors[t].bytes);
    }
    if (is_needed(tensor, std::nullopt))
      add(uses_[t].back(), runs_.size() - 1, graph_.tensors[t].bytes);
  }
}

std::size_t StepRuns::position(Run run) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(runs_, run) - runs_.begin());
}

bool StepRuns::has(Run run) const {
  return std::ranges::binary_search(runs_, run);
}

std::int64_t StepRuns::peak_bytes() const {
  return std::ranges::max(bytes_);
}

UsesAround StepRuns::around(std::int32_t tensor, Run run) const {
  const std::vector<Run>& uses = uses_[at(tensor)];
  auto next = std::ranges::lower_bound(uses, run);
  UsesAround around;
  if (next != uses.begin()) around.before = *std::prev(next);
  if (next != uses.end() && *next == run) ++next;
  if (next != uses.end()) around.after = *next;
  return around;
}

bool StepRuns::is_needed(std::int32_t tensor, const std::optional<Run>& after) const {
  return after ? after->op != maker(tensor) : graph_.tensors[at(tensor)].is_result;
}

bool StepRuns::is_useful(Run run) const {
  return std::ranges::any_of(makes(run.op),
                             [&](std::int32_t t) { return is_needed(t, around(t, run).after); });
}

void StepRuns::add(const std::optional<Run>& from, std::size_t last, std::int64_t bytes) {
  const std::size_t first = from ? position(*from) + 1 : 0;
  std::int64_t more = 0;
  for (std::size_t i = first; i <= last; ++i) {
    more -= above(bytes_[i]);
    bytes_[i] += bytes;
    more += above(bytes_[i]);
  }
  excess_ += more;
  work_ += last + 1 > first ? last + 1 - first : 0;
}

// What the operator makes need not stay before the run; what it reads has to.
void StepRuns::change_tensors(Run run, std::size_t position, Change change) {
  const std::int64_t sign = change == Change::insertion ? 1 : -1;
  const auto note = [&](std::int32_t t) {
    std::vector<Run>& uses = uses_[at(t)];
    const auto place = std::ranges::lower_bound(uses, run);
    if (change == Change::insertion)
      uses.insert(place, run);
    else
      uses.erase(place);
  };
  for (const std::int32_t t : graph_.operators[at(run.op)].makes) {
    const UsesAround its = around(t, run);
    if (is_needed(t, its.after)) add(its.before, position, -sign * graph_.tensors[at(t)].bytes);
    note(t);
  }
  for (const std::int32_t t : reads(run.op)) {
    const UsesAround its = around(t, run);
    if (!is_needed(t, its.after)) add(its.before, position, sign * graph_.tensors[at(t)].bytes);
    note(t);
  }
}

void StepRuns::insert(Run run) {
  const std::size_t p = position(run);
  const std::int64_t before = bytes_[p] - made_bytes_[at(runs_[p].op)];
  const auto offset = static_cast<std::ptrdiff_t>(p);
  runs_.insert(runs_.begin() + offset, run);
  bytes_.insert(bytes_.begin() + offset, before + made_bytes_[at(run.op)]);
  excess_ += above(bytes_[p]);
  added_ns_ += graph_.operators[at(run.op)].ns;
  change_tensors(run, p, Change::insertion);
}

void StepRuns::erase(Run run) {
  const std::size_t p = position(run);
  change_tensors(run, p, Change::removal);
  const auto offset = static_cast<std::ptrdiff_t>(p);
  excess_ -= above(bytes_[p]);
  runs_.erase(runs_.begin() + offset);
  bytes_.erase(bytes_.begin() + offset);
  added_ns_ -= graph_.operators[at(run.op)].ns;
}

std::vector<StepAction> StepRuns::schedule() const {
  std::vector<StepAction> schedule;
  for (const Run& run : runs_) {
    schedule.push_back({StepAction::Kind::run, run.op});
    std::vector<std::int32_t> touched = graph_.operators[at(run.op)].makes;
    touched.insert(touched.end(), reads(run.op).begin(), reads(run.op).end());
    for (const std::int32_t t : touched) {
      if (!is_needed(t, around(t, run).after)) schedule.push_back({StepAction::Kind::free, t});
    }
  }
  return schedule;
}

}  // namespace cox::planner
