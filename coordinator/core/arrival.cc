#include "coordinator/core/arrival.h"

#include <algorithm>
#include <cmath>

namespace cox {
namespace {

// Rates of machines' clocks that no daemon slews differ by about 10 parts in a million, bad ones by
// 100.
constexpr double kWorstRate = 1e-4;
// The change of a measured rate until the next comparison: temperature, slewing.
constexpr double kRateChange = 5e-6;
constexpr std::int64_t kFirstWaitNs = 1'000'000'000;
constexpr std::int64_t kLongestWaitNs = 30'000'000'000;

}  // namespace

void merge_into(ArrivalStamp& into, const ArrivalStamp& from) {
  into.at_ns = std::max(into.at_ns, from.at_ns);
  into.error_ns = std::max(into.error_ns, from.error_ns);
}

std::optional<double> waiting_seconds(const ArrivalStamp& mine, const ArrivalStamp& latest) {
  if (mine.error_ns == ArrivalStamp::kUnknown || latest.error_ns == ArrivalStamp::kUnknown)
    return std::nullopt;
  if (latest.at_ns <= mine.at_ns) return 0;
  const auto gap = static_cast<double>(latest.at_ns - mine.at_ns);
  const double error = static_cast<double>(mine.error_ns) + static_cast<double>(latest.error_ns);
  return gap > error ? gap * 1e-9 : 0;
}

void OffsetBounds::note(const ClockExchange& exchange) {
  const std::int64_t least = exchange.root_ns - exchange.received_ns;
  const std::int64_t most = exchange.root_ns - exchange.sent_ns;
  most_ns_ = least_ns_ ? std::min(most_ns_, most) : most;
  least_ns_ = least_ns_ ? std::max(*least_ns_, least) : least;
}

std::optional<ClockOffset> OffsetBounds::offset() const {
  if (!least_ns_ || most_ns_ < *least_ns_) return std::nullopt;
  const std::int64_t width = most_ns_ - *least_ns_;
  return ClockOffset{*least_ns_ + width / 2, static_cast<std::uint64_t>(width / 2 + 1)};
}

void ClockModel::note(std::int64_t now_ns, const ClockOffset& offset) {
  rate_ = 0;
  rate_error_ = kWorstRate;
  if (last_ && now_ns > last_->at_ns) {
    const auto passed = static_cast<double>(now_ns - last_->at_ns);
    rate_ = static_cast<double>(offset.offset_ns - last_->offset.offset_ns) / passed;
    rate_error_ =
        static_cast<double>(offset.error_ns + last_->offset.error_ns) / passed + kRateChange;
    // Two comparisons in quick succession may bound the rate less tightly than the bound for any
    // clock.
    if (rate_error_ > kWorstRate) rate_ = 0;
    rate_error_ = std::min(rate_error_, kWorstRate);
  }
  last_ = Known{now_ns, offset};
  wait_ns_ = wait_ns_ == 0 ? kFirstWaitNs : std::min(2 * wait_ns_, kLongestWaitNs);
}

void ClockModel::forget() {
  last_.reset();
  wait_ns_ = 0;
}

ArrivalStamp ClockModel::stamp(std::int64_t now_ns) const {
  if (kind_ == Kind::same) return {static_cast<std::uint64_t>(now_ns), 0};
  if (!last_) return {static_cast<std::uint64_t>(now_ns), ArrivalStamp::kUnknown};
  const auto passed = static_cast<double>(now_ns - last_->at_ns);
  const auto drifted = static_cast<std::int64_t>(std::llround(rate_ * passed));
  const auto error = static_cast<std::uint64_t>(std::ceil(rate_error_ * std::abs(passed)));
  return {static_cast<std::uint64_t>(now_ns + last_->offset.offset_ns + drifted),
          last_->offset.error_ns + error};
}

bool ClockModel::is_due(std::int64_t now_ns) const {
  if (kind_ == Kind::same) return false;
  return !last_ || now_ns - last_->at_ns >= wait_ns_;
}

}  // namespace cox
