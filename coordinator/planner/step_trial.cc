#include "coordinator/planner/step_trial.h"

#include <algorithm>

namespace cox::planner {

StepTrial::StepTrial(const StepGraph& graph)
    : graph_(graph),
      makers_(graph.tensors.size(), kNone),
      is_there_(graph.tensors.size()),
      local_uses_(graph.tensors.size()),
      is_collected_(graph.operators.size()) {
  std::vector<std::vector<Index>> uses(graph.tensors.size());
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const auto op = static_cast<Index>(i);
    for (const Index t : graph.operators[i].makes) makers_[at(t)] = op;
    for (const Index t : graph.operators[i].reads) {
      if (uses[at(t)].empty() || uses[at(t)].back() != op) uses[at(t)].push_back(op);
    }
  }
  for (std::size_t t = 0; t < uses.size(); ++t) {
    first_gap_.push_back(gaps_.size());
    Index from = makers_[t];
    for (const Index to : uses[t]) {
      gaps_.push_back({static_cast<Index>(t), from, to});
      from = to;
    }
  }
  first_gap_.push_back(gaps_.size());
}

StepTrial::Index StepTrial::gap_at(Index tensor, Index op) const {
  const auto first = gaps_.begin() + static_cast<std::ptrdiff_t>(first_gap_[at(tensor)]);
  const auto end = gaps_.begin() + static_cast<std::ptrdiff_t>(first_gap_[at(tensor) + 1]);
  const auto found = std::ranges::lower_bound(first, end, op, {}, &Gap::to);
  return found == end ? kNone : static_cast<Index>(found - gaps_.begin());
}

// Whether a tensor that is made again while it is the turn of `op` stays for later.
bool StepTrial::stays_over(Index tensor, Index op) const {
  const Index gap = gap_at(tensor, op);
  return gap == kNone ? graph_.tensors[at(tensor)].is_result : (*stays_)[at(gap)] != Stay::drop;
}

void StepTrial::begin(const std::vector<Stay>& stays, std::int64_t target_bytes,
                      std::vector<StepAction>* schedule) {
  stays_ = &stays;
  schedule_ = schedule;
  target_ = target_bytes;
  alive_ = 0;
  price_ = {};
  std::ranges::fill(is_there_, 0);
}

StepPrice StepTrial::price(const std::vector<Stay>& stays, std::int64_t target_bytes,
                           std::vector<StepAction>* schedule) {
  begin(stays, target_bytes, schedule);
  for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
    const auto op = static_cast<Index>(i);
    high_ = 0;
    make_again(op);
    run(op);
    if (high_ > price_.peak_bytes) {
      price_.peak_bytes = high_;
      price_.peak_at = op;
    }
    price_.excess += static_cast<double>(std::max<std::int64_t>(0, high_ - target_));
    for (const Index t : graph_.operators[i].reads) leave_after(t, op);
    for (const Index t : graph_.operators[i].makes) leave_after(t, op);
  }
  return price_;
}

void StepTrial::run(Index op) {
  const StepOperator& it = graph_.operators[at(op)];
  ++work_;
  price_.ns += it.ns;
  if (schedule_ != nullptr) schedule_->push_back({StepAction::Kind::run, op});
  std::int64_t room = 0;
  for (const Index t : it.makes) room += graph_.tensors[at(t)].bytes;
  high_ = std::max(high_, alive_ + room);
  for (const Index t : it.makes) {
    if (is_there_[at(t)] != 0) continue;
    is_there_[at(t)] = 1;
    alive_ += graph_.tensors[at(t)].bytes;
  }
}

void StepTrial::free(Index tensor) {
  if (is_there_[at(tensor)] == 0) return;
  is_there_[at(tensor)] = 0;
  alive_ -= graph_.tensors[at(tensor)].bytes;
  if (schedule_ != nullptr) schedule_->push_back({StepAction::Kind::free, tensor});
}

// After the turn of `op`.
void StepTrial::leave_after(Index tensor, Index op) {
  const Index gap = gap_at(tensor, op + 1);
  const bool stays =
      gap == kNone ? graph_.tensors[at(tensor)].is_result : (*stays_)[at(gap)] == Stay::keep;
  if (!stays) free(tensor);
}

// Makes all that `now` reads and that is not there, and frees what was needed for that alone.
void StepTrial::make_again(Index now) {
  slice_.clear();
  for (const Index t : graph_.operators[at(now)].reads) {
    if (is_there_[at(t)] != 0) continue;
    ++local_uses_[at(t)];
    collect(t);
  }
  if (slice_.empty()) return;
  std::ranges::sort(slice_);
  for (const Index op : slice_) {
    is_collected_[at(op)] = 0;
    run_again(op, now);
  }
  for (const Index t : graph_.operators[at(now)].reads) local_uses_[at(t)] = 0;
}

void StepTrial::collect(Index tensor) {
  stack_.push_back(makers_[at(tensor)]);
  while (!stack_.empty()) {
    const Index op = stack_.back();
    stack_.pop_back();
    if (is_collected_[at(op)] != 0) continue;
    is_collected_[at(op)] = 1;
    slice_.push_back(op);
    for (const Index t : graph_.operators[at(op)].reads) {
      if (is_there_[at(t)] != 0) continue;
      ++local_uses_[at(t)];
      stack_.push_back(makers_[at(t)]);
    }
  }
}

void StepTrial::run_again(Index op, Index now) {
  const StepOperator& it = graph_.operators[at(op)];
  // What was there before the slice is no use of its own.
  stack_.clear();
  for (const Index t : it.makes) {
    if (is_there_[at(t)] == 0) stack_.push_back(t);
  }
  run(op);
  for (const Index t : it.reads) {
    if (local_uses_[at(t)] > 0) use_up(t, now);
  }
  for (const Index t : stack_) {
    if (local_uses_[at(t)] == 0 && !stays_over(t, now)) free(t);
  }
  stack_.clear();
}

void StepTrial::use_up(Index tensor, Index now) {
  if (--local_uses_[at(tensor)] == 0 && !stays_over(tensor, now)) free(tensor);
}

std::int64_t StepTrial::remake_ns(const std::vector<Stay>& stays, std::size_t gap) {
  const Index now = gaps_[gap].to;
  const auto is_there = [&](Index t) {
    const Index its = gap_at(t, now);
    if (its == kNone) return graph_.tensors[at(t)].is_result;
    return stays[at(its)] == Stay::keep && at(its) != gap;
  };
  std::int64_t ns = 0;
  slice_.clear();
  stack_.push_back(makers_[at(gaps_[gap].tensor)]);
  while (!stack_.empty()) {
    const Index op = stack_.back();
    stack_.pop_back();
    if (is_collected_[at(op)] != 0) continue;
    is_collected_[at(op)] = 1;
    slice_.push_back(op);
    ns += graph_.operators[at(op)].ns;
    ++work_;
    for (const Index t : graph_.operators[at(op)].reads) {
      if (!is_there(t)) stack_.push_back(makers_[at(t)]);
    }
  }
  for (const Index op : slice_) is_collected_[at(op)] = 0;
  return ns;
}

}  // namespace cox::planner
