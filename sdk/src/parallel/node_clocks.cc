#include "sdk/src/parallel/node_clocks.h"

#include <chrono>
#include <span>
#include <utility>

namespace cox::detail {
namespace {

std::int64_t steady_clock_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Message of a node's lowest rank to the others.
struct Told {
  std::int64_t at_ns = 0;
  ClockOffset offset{0, ArrivalStamp::kUnknown};
};

}  // namespace

Result<NodeClocks> NodeClocks::make(transport::Communicator& ranks, ReadClock read) {
  if (!read) read = steady_clock_ns;
  const bool is_one_node = ranks.ranks_on_node() == ranks.size();
  const auto kind = is_one_node ? ClockModel::Kind::same : ClockModel::Kind::compared;
  NodeClocks clocks(ClockModel(kind), std::move(read));
  if (is_one_node) return clocks;
  auto node = ranks.split_by_node();
  if (!node.ok()) return node.status();
  clocks.node_ = std::move(*node);
  const bool leads = clocks.node_->rank() == kRoot;
  auto leaders = ranks.split(leads ? 1 : 0);
  if (!leaders.ok()) return leaders.status();
  if (leads) clocks.leaders_ = std::move(*leaders);
  if (Status compared = clocks.compare({}); !compared.ok()) return compared;
  return clocks;
}

// Rank 0 reads its clock after every node's message has arrived and before its own is sent.
Result<ClockOffset> NodeClocks::exchange(const BetweenPolls& pump) const {
  OffsetBounds bounds;
  for (int i = 0; i < kExchanges; ++i) {
    ClockExchange one;
    one.sent_ns = read_();
    const auto sent = gather_values(*leaders_, one.sent_ns, pump);
    if (!sent.ok()) return sent.status();
    one.root_ns = read_();
    const Status answered =
        broadcast(*leaders_, std::as_writable_bytes(std::span(&one.root_ns, 1)), kRoot, pump);
    if (!answered.ok()) return answered;
    one.received_ns = read_();
    bounds.note(one);
  }
  if (leaders_->rank() == kRoot) return ClockOffset{};
  return bounds.offset().value_or(ClockOffset{0, ArrivalStamp::kUnknown});
}

Seconds NodeClocks::error() const {
  const std::uint64_t error_ns = stamp().error_ns;
  if (error_ns == ArrivalStamp::kUnknown) return Seconds(-1);
  return Seconds(static_cast<double>(error_ns) * 1e-9);
}

Status NodeClocks::compare(const BetweenPolls& pump) {
  if (node_ == nullptr) return ok_status();
  Told told;
  Status exchanged;
  if (leaders_ != nullptr) {
    const auto offset = exchange(pump);
    exchanged = offset.status();
    if (offset.ok()) told = {read_(), *offset};
  }
  const Status heard = broadcast(*node_, std::as_writable_bytes(std::span(&told, 1)), kRoot, pump);
  if (!heard.ok()) return heard;
  if (told.offset.error_ns != ArrivalStamp::kUnknown) {
    model_.note(told.at_ns, told.offset);
  } else {
    model_.forget();
  }
  return exchanged;
}

}  // namespace cox::detail
