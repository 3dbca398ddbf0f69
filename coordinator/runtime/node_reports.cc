#include "coordinator/runtime/node_reports.h"

#include <algorithm>
#include <chrono>

namespace cox::runtime {
namespace {

RankSignal nothing() {
  RankSignal signal;
  signal.magic = 0;
  return signal;
}

bool is_last(const RankSignal& signal) {
  return signal.magic != 0 && signal.has(SignalFlag::finished);
}

}  // namespace

NodeReports::NodeReports(transport::SignalBoard board, std::vector<RankId> members)
    : board_(board),
      members_(std::move(members)),
      signals_(members_.size(), nothing()),
      evidence_(board_.shape().blocks),
      owes_(members_.size(), 0) {}

void NodeReports::open() {
  owed_ = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    owes_[i] = is_last(signals_[i]) ? 0 : 1;
    owed_ += owes_[i];
  }
}

void NodeReports::take_when_complete() {
  if (owed_ > 0 && holds(owed_)) take();
}

bool NodeReports::holds(std::int32_t fresh) {
  return board_.wait(fresh, std::chrono::nanoseconds(0)) == transport::BoardWake::complete;
}

void NodeReports::take() {
  if (!holds(1)) return;
  board_.collect(collected_);
  for (const RankSignal& signal : collected_.signals) keep(signal);
  merge_into(evidence_, collected_.evidence);
}

void NodeReports::keep(const RankSignal& signal) {
  const auto member = std::lower_bound(members_.begin(), members_.end(), signal.rank);
  if (member == members_.end() || *member != signal.rank) return;
  const auto slot = static_cast<std::size_t>(member - members_.begin());
  RankSignal& kept = signals_[slot];
  if (is_last(signal) && !is_last(kept)) ++finished_;
  // An empty place is asked about first: the message of a failed check would cost an allocation.
  const bool both_count =
      kept.magic != 0 && check(kept).ok() && check(signal).ok() && !is_last(kept);
  kept = both_count ? merge_reports(kept, signal) : signal;
  if (both_count) seal(kept);
  owed_ -= owes_[slot];
  owes_[slot] = 0;
}

void NodeReports::sent() {
  for (RankSignal& signal : signals_) {
    if (!is_last(signal)) signal = nothing();
  }
  std::fill(evidence_.begin(), evidence_.end(), BlockEvidence{});
}

}  // namespace cox::runtime
