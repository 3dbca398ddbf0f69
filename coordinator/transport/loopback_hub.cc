#include "coordinator/transport/loopback_hub.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace cox::transport {
namespace {

std::size_t index(RankId rank) {
  return static_cast<std::size_t>(rank.value());
}

std::string who_started_what(const LoopbackOperation& operation) {
  std::string text;
  for (std::size_t r = 0; r < operation.parts.size(); ++r) {
    const Call& call = operation.parts[r].call;
    text += (r == 0 ? "rank " : "; rank ") + std::to_string(r) + " ";
    text += call.operation == Operation::none ? "has not come to it" : "started " + describe(call);
  }
  return text;
}

void combine(LoopbackOperation& operation, const Reduction& reduction) {
  operation.combined = operation.parts[0].given;
  const std::size_t count = operation.combined.size() / reduction.element_bytes;
  for (std::size_t r = 1; r < operation.parts.size(); ++r) {
    reduction.apply(operation.combined.data(), operation.parts[r].given.data(), count);
  }
}

}  // namespace

void LoopbackState::complain(std::string complaint) {
  const std::lock_guard lock(mutex_);
  complaints_.push_back(std::move(complaint));
}

Status LoopbackState::verify() const {
  const std::lock_guard lock(mutex_);
  if (complaints_.empty()) return ok_status();
  std::vector<std::string> sorted = complaints_;
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const std::string& complaint : sorted) text += (text.empty() ? "" : "; ") + complaint;
  return failed_precondition(text);
}

LoopbackHub::LoopbackHub(std::string name, std::vector<NodeId> nodes,
                         std::shared_ptr<LoopbackState> state)
    : name_(std::move(name)),
      nodes_(std::move(nodes)),
      state_(std::move(state)),
      next_(nodes_.size(), 0),
      open_(static_cast<std::int32_t>(nodes_.size())) {}

std::int32_t LoopbackHub::ranks_on_node(RankId rank) const {
  return static_cast<std::int32_t>(std::count(nodes_.begin(), nodes_.end(), node(rank)));
}

Result<LoopbackOperation*> LoopbackHub::start(RankId rank, const Call& call, ConstBytes given,
                                              const Reduction& reduction) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  LoopbackOperation& operation = operation_for(next_[index(rank)]++);
  LoopbackOperation::Part& part = operation.parts[index(rank)];
  part.call = call;
  part.given.assign(given.begin(), given.end());
  if (operation.started == 0) operation.call = call;
  ++operation.started;
  if (!(operation.call == call)) {
    break_on_mismatch(operation);
    return failure_;
  }
  if (operation.started == size()) finish(operation, reduction);
  if (!failure_.ok()) return failure_;
  return &operation;
}

Status LoopbackHub::broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return ok_status();
  const std::lock_guard lock(mutex_);
  return failure_;
}

LoopbackOperation& LoopbackHub::operation_for(std::uint64_t number) {
  if (number - window_start_ == window_.size()) {
    if (retired_.empty()) {
      window_.push_back(std::make_unique<LoopbackOperation>());
      window_.back()->parts.resize(nodes_.size());
    } else {
      window_.push_back(std::move(retired_.back()));
      retired_.pop_back();
    }
    LoopbackOperation& fresh = *window_.back();
    fresh.number = number;
    fresh.started = fresh.taken = 0;
    for (LoopbackOperation::Part& part : fresh.parts) part.call = Call{};
    fresh.complete.store(false, std::memory_order_relaxed);
  }
  return *window_[number - window_start_];
}

void LoopbackHub::break_on_mismatch(const LoopbackOperation& operation) {
  failure_ = failed_precondition(
      "operation " + std::to_string(operation.number) + " on communicator " + name_ +
      ": expected the same call on every rank, found: " + who_started_what(operation) +
      ". MPI would hang or corrupt here; make all ranks start the same operations in one order");
  is_broken_.store(true, std::memory_order_release);
}

void LoopbackHub::finish(LoopbackOperation& operation, const Reduction& reduction) {
  switch (operation.call.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      combine(operation, reduction);
      break;
    case Operation::duplicate:
    case Operation::split:
    case Operation::split_by_node:
      make_children(operation);
      break;
    case Operation::shared_segment:
      // Over the limit it stays empty, which every rank reports.
      if (operation.call.bytes <= state_->options().shared_segment_limit_bytes) {
        operation.segment = heap_segment(operation.call.bytes);
      }
      break;
    default:
      break;
  }
  operation.complete.store(true, std::memory_order_release);
}

void LoopbackHub::make_children(LoopbackOperation& operation) {
  std::map<std::int32_t, std::vector<RankId>> groups;  // by color, ranks ascending
  for (std::size_t r = 0; r < operation.parts.size(); ++r) {
    std::int32_t color = 0;
    std::memcpy(&color, operation.parts[r].given.data(), sizeof color);
    groups[color].emplace_back(static_cast<std::int32_t>(r));
  }
  const std::string base = name_ + "." + std::to_string(children_++);
  const bool named_by_color = operation.call.operation != Operation::duplicate;
  for (const auto& [color, ranks] : groups) {
    std::vector<NodeId> nodes;
    for (const RankId rank : ranks) nodes.push_back(node(rank));
    const std::string name = named_by_color ? base + ":" + std::to_string(color) : base;
    const auto child = std::make_shared<LoopbackHub>(name, std::move(nodes), state_);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      LoopbackOperation::Part& part = operation.parts[index(ranks[i])];
      part.child = child;
      part.child_rank = RankId(static_cast<std::int32_t>(i));
    }
  }
}

void LoopbackHub::leave(LoopbackOperation& operation) {
  const std::lock_guard lock(mutex_);
  ++operation.taken;
  while (!window_.empty() && window_.front()->taken == size()) {
    for (LoopbackOperation::Part& part : window_.front()->parts) part.child.reset();
    window_.front()->segment = SharedSegment{};
    retired_.push_back(std::move(window_.front()));
    window_.pop_front();
    ++window_start_;
  }
}

void LoopbackHub::close() {
  std::unique_lock lock(mutex_);
  if (--open_ > 0 || !failure_.ok()) return;
  const auto [fewest, most] = std::minmax_element(next_.begin(), next_.end());
  if (*fewest == *most) return;
  const std::string text =
      "communicator " + name_ + " ended with operation " + std::to_string(*fewest) +
      " started by some ranks only: " + who_started_what(*window_[*fewest - window_start_]);
  lock.unlock();
  state_->complain(text);
}

}  // namespace cox::transport
