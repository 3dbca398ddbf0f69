#include "tests/planner/step_referee.h"

#include <algorithm>
#include <limits>
#include <set>

namespace cox::test {
namespace {

using planner::StepAction;
using planner::StepGraph;
using planner::StepOperator;

std::size_t at(std::int32_t index) {
  return static_cast<std::size_t>(index);
}

class Dtr {
 public:
  Dtr(const StepGraph& graph, std::int64_t budget)
      : graph_(graph), room_(budget - graph.base_bytes), tensors_(graph.tensors.size()) {
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
      for (const std::int32_t t : graph.operators[i].makes) tensors_[at(t)].maker = int(i);
      for (const std::int32_t t : graph.operators[i].reads) tensors_[at(t)].last_use = int(i);
    }
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      tensors_[t].last_use = std::max(tensors_[t].last_use, tensors_[t].maker);
    for (const StepOperator& it : graph.operators) {
      for (const std::int32_t made : it.makes) {
        for (const std::int32_t read : it.reads) tensors_[at(read)].children.insert(made);
      }
    }
  }

  std::optional<std::vector<StepAction>> run() {
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      if (!call(int(i))) return std::nullopt;
      let_go(graph_.operators[i].reads, int(i));
      let_go(graph_.operators[i].makes, int(i));
    }
    return std::move(schedule_);
  }

 private:
  struct Tensor {
    int maker = -1;
    int last_use = -1;  // by the program
    std::set<std::int32_t> children;
    bool is_there = false;
    bool was_made = false;
    int locks = 0;
    std::int64_t last_access = 0;
  };

  void let_go(const std::vector<std::int32_t>& tensors, int op) {
    for (const std::int32_t t : tensors) {
      if (tensors_[at(t)].last_use == op && !graph_.tensors[at(t)].is_result) evict(t);
    }
  }

  // Makes what it reads, makes room, runs.
  bool call(int op) {
    const StepOperator& it = graph_.operators[at(op)];
    for (const std::int32_t t : it.reads) ++tensors_[at(t)].locks;
    bool fits = true;
    for (const std::int32_t t : it.reads) {
      if (fits && !tensors_[at(t)].is_there) fits = call(tensors_[at(t)].maker);
    }
    std::int64_t needs = 0;
    for (const std::int32_t t : it.makes) needs += graph_.tensors[at(t)].bytes;
    // What it makes a second time is not evicted for it.
    for (const std::int32_t t : it.makes) ++tensors_[at(t)].locks;
    while (fits && alive_ + needs > room_) fits = evict_one();
    if (fits) perform(op);
    for (const std::int32_t t : it.makes) --tensors_[at(t)].locks;
    for (const std::int32_t t : it.reads) --tensors_[at(t)].locks;
    return fits;
  }

  void perform(int op) {
    const StepOperator& it = graph_.operators[at(op)];
    schedule_.push_back({StepAction::Kind::run, op});
    clock_ += it.ns;
    for (const std::int32_t t : it.reads) tensors_[at(t)].last_access = clock_;
    for (const std::int32_t t : it.makes) {
      Tensor& made = tensors_[at(t)];
      if (!made.is_there) alive_ += graph_.tensors[at(t)].bytes;
      made.is_there = made.was_made = true;
      made.last_access = clock_;
    }
  }

  void evict(std::int32_t t) {
    if (!tensors_[at(t)].is_there) return;
    tensors_[at(t)].is_there = false;
    alive_ -= graph_.tensors[at(t)].bytes;
    schedule_.push_back({StepAction::Kind::free, t});
  }

  bool evict_one() {
    std::int32_t best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Tensor& it = tensors_[t];
      if (!it.is_there || it.locks > 0 || graph_.tensors[t].bytes == 0) continue;
      // Results are held by the program, and nobody could make them again for it.
      if (graph_.tensors[t].is_result) continue;
      const double h = heuristic(std::int32_t(t));
      if (h >= least) continue;
      least = h;
      best = std::int32_t(t);
    }
    if (best < 0) return false;
    evict(best);
    return true;
  }

  double heuristic(std::int32_t t) const {
    const Tensor& it = tensors_[at(t)];
    std::set<std::int32_t> around;
    above(t, around);
    below(t, around);
    double cost = static_cast<double>(graph_.operators[at(it.maker)].ns);
    for (const std::int32_t other : around)
      cost += static_cast<double>(graph_.operators[at(tensors_[at(other)].maker)].ns);
    const auto stale = static_cast<double>(clock_ - it.last_access + 1);
    return cost / (static_cast<double>(graph_.tensors[at(t)].bytes) * stale);
  }
  bool is_evicted(std::int32_t t) const {
    return tensors_[at(t)].was_made && !tensors_[at(t)].is_there;
  }
  void above(std::int32_t t, std::set<std::int32_t>& found) const {
    for (const std::int32_t parent : graph_.operators[at(tensors_[at(t)].maker)].reads) {
      if (is_evicted(parent) && found.insert(parent).second) above(parent, found);
    }
  }
  void below(std::int32_t t, std::set<std::int32_t>& found) const {
    for (const std::int32_t child : tensors_[at(t)].children) {
      if (is_evicted(child) && found.insert(child).second) below(child, found);
    }
  }

  const StepGraph& graph_;
  const std::int64_t room_;
  std::vector<Tensor> tensors_;
  std::vector<StepAction> schedule_;
  std::int64_t alive_ = 0;
  std::int64_t clock_ = 0;
};

}  // namespace

RefereedStep execute(const StepGraph& graph, const std::vector<StepAction>& schedule) {
  RefereedStep step;
  std::set<std::int32_t> there;
  std::set<std::int32_t> ran;
  std::int64_t alive = graph.base_bytes;
  for (const StepAction& action : schedule) {
    if (action.kind == StepAction::Kind::free) {
      if (there.erase(action.index) == 0) step.error = "frees what is not there";
      alive -= graph.tensors.at(at(action.index)).bytes;
      continue;
    }
    const StepOperator& it = graph.operators.at(at(action.index));
    if (action.index > 0 && !ran.contains(action.index - 1)) step.error = "changes the order";
    ran.insert(action.index);
    step.ns += it.ns;
    for (const std::int32_t t : it.reads) {
      if (!there.contains(t)) step.error = it.name + " reads what is not there";
    }
    std::int64_t room = 0;
    for (const std::int32_t t : it.makes) room += graph.tensors[at(t)].bytes;
    step.peak_bytes = std::max(step.peak_bytes, alive + room);
    for (const std::int32_t t : it.makes) {
      if (there.insert(t).second) alive += graph.tensors[at(t)].bytes;
    }
  }
  if (ran.size() != graph.operators.size()) step.error = "leaves operators out";
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].is_result && !there.contains(std::int32_t(t)))
      step.error = "a result of the step is not there";
  }
  return step;
}

std::optional<std::vector<StepAction>> dtr(const StepGraph& graph, std::int64_t budget_bytes) {
  return Dtr(graph, budget_bytes).run();
}

}  // namespace cox::test
