#include "sdk/src/parallel/bucket_tuning.h"

#include <algorithm>
#include <limits>

namespace cox::detail {
namespace {

constexpr std::int64_t kSizes[] = {std::int64_t{1} << 18, std::int64_t{1} << 20,
                                   std::int64_t{4} << 20, std::int64_t{25} << 20};

BucketSizes sizes_of(std::int64_t bytes) {
  return {std::min<std::int64_t>(bytes, 1 << 20), bytes};
}

std::vector<BucketSizes> candidates_for(std::int64_t total_bytes, std::int64_t fixed_bytes) {
  if (fixed_bytes > 0) return {sizes_of(fixed_bytes)};
  std::vector<BucketSizes> candidates;
  for (const std::int64_t bytes : kSizes) {
    candidates.push_back(sizes_of(bytes));
    if (bytes >= total_bytes) break;  // larger ones would all be one bucket
  }
  return candidates;
}

}  // namespace

std::vector<std::uint32_t> completed(std::span<const std::uint32_t> order, std::size_t parameters) {
  std::vector<std::uint32_t> all(order.begin(), order.end());
  std::vector<bool> seen(parameters);
  for (const std::uint32_t p : order) seen[p] = true;
  for (const std::uint32_t p : reverse_order(parameters)) {
    if (!seen[p]) all.push_back(p);
  }
  return all;
}

BucketTuning::BucketTuning(std::size_t parameters, std::int64_t total_bytes,
                           std::int64_t fixed_bytes)
    : candidates_(candidates_for(total_bytes, fixed_bytes)),
      seconds_(candidates_.size(), std::numeric_limits<double>::infinity()) {
  choice_ = {reverse_order(parameters), candidates_.front()};
}

void BucketTuning::restore(const BucketChoice& choice) {
  choice_ = choice;
  over_ = true;
}

bool BucketTuning::learn_order(std::span<const std::uint32_t> order) {
  if (!wants_order()) return false;
  if (order.empty() && ++steps_ < kStepsForOrder) return false;
  choice_.order = completed(order, choice_.order.size());
  has_order_ = true;
  steps_ = 0;
  over_ = candidates_.size() == 1;
  return true;
}

bool BucketTuning::learn_cost(double seconds) {
  if (over_ || !has_order_) return false;
  ++steps_;
  // The first step with a new layout touches its memory for the first time.
  if (steps_ > 1) seconds_[trying_] = std::min(seconds_[trying_], seconds);
  return steps_ == kStepsPerSize && next_size();
}

bool BucketTuning::next_size() {
  steps_ = 0;
  if (++trying_ < candidates_.size()) {
    choice_.sizes = candidates_[trying_];
    return true;
  }
  const auto best = std::min_element(seconds_.begin(), seconds_.end());
  choice_.sizes = candidates_[static_cast<std::size_t>(best - seconds_.begin())];
  over_ = true;
  return true;
}

}  // namespace cox::detail
