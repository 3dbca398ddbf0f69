#include "coxswain/sample_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <numeric>
#include <string>

#include "coordinator/core/split_mix.h"

namespace cox {
namespace {

std::uint64_t mask(int bits) {
  return (std::uint64_t{1} << bits) - 1;
}

// Permutation is a pseudo-random permutation of [0, n) in constant memory. A Feistel network over
// the next power of two is repeated until the result falls below n: fewer than two times on
// average. Not cryptographic.
class Permutation {
 public:
  // Makes the permutation number (seed, stream). REQUIRES: 1 <= size <= 2^62.
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) : size_(size) {
    const int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 0;
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
    SplitMix keys(spread_bits(split_mix(seed) + stream * kGolden));
    for (std::uint64_t& key : keys_) key = keys.next();
  }

  // Returns a value below size; one-to-one. REQUIRES: position < size.
  std::uint64_t operator()(std::uint64_t position) const {
    std::uint64_t value = encrypt(position);
    while (value >= size_) value = encrypt(value);
    return value;
  }

 private:
  static constexpr int kRounds = 6;  // each mixes either half once

  std::uint64_t encrypt(std::uint64_t value) const {
    std::uint64_t low = value & mask(low_bits_);
    std::uint64_t high = value >> low_bits_;
    for (std::size_t i = 0; i < keys_.size(); i += 2) {
      high ^= spread_bits(low + keys_[i]) & mask(high_bits_);
      low ^= spread_bits(high + keys_[i + 1]) & mask(low_bits_);
    }
    return (high << low_bits_) | low;
  }

  std::uint64_t size_;
  int low_bits_ = 0;
  int high_bits_ = 0;
  std::array<std::uint64_t, 2 * kRounds> keys_{};
};

constexpr std::int64_t kMaxSize = std::int64_t{1} << 48;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 31;

Status out_of_range(const char* what, std::int64_t most, std::int64_t found) {
  return invalid_argument(std::string("sample plan: expected ") + what + " of 1 to " +
                          std::to_string(most) + ", found " + std::to_string(found));
}

// Gives the `left` samples, which rounding down left over, to the largest remainders.
void hand_out_rest(std::int64_t left, const std::vector<std::uint64_t>& remainders,
                   std::vector<std::int64_t>& counts) {
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; i < static_cast<std::size_t>(left); ++i) ++counts[order[i]];
}

}  // namespace

Result<SamplePlan> SamplePlan::create(SamplePlanOptions options) {
  if (options.size < 1 || options.size > kMaxSize) {
    return out_of_range("a data set size", kMaxSize, options.size);
  }
  if (options.global_batch < 1 || options.global_batch > kMaxBatch) {
    return out_of_range("a global batch", kMaxBatch, options.global_batch);
  }
  if (options.tail == Tail::drop && options.size < options.global_batch) {
    return invalid_argument("sample plan: expected at least one global batch of " +
                            std::to_string(options.global_batch) +
                            " samples, found a data set of " + std::to_string(options.size) +
                            "; keep partial batches or use less");
  }
  return SamplePlan(options);
}

// A batch larger than the data set is cut to the data set, or the tail would never end.
SampleBatch SamplePlan::batch_at(std::uint64_t cursor, std::int64_t samples) const {
  const auto batch = std::min(static_cast<std::uint64_t>(samples), size());
  std::uint64_t left = size() - cursor % size();
  if (left < batch && options_.tail == Tail::drop) {
    cursor += left;
    left = size();
  }
  const std::uint64_t count = std::min(left, batch);
  return {.cursor = cursor, .count = static_cast<std::int64_t>(count), .next = cursor + count};
}

std::int64_t SamplePlan::sample_at(std::uint64_t cursor) const {
  return indices(cursor, 0, 1).front();
}

std::vector<std::int64_t> SamplePlan::indices(std::uint64_t cursor, std::int64_t first,
                                              std::int64_t count) const {
  assert(first >= 0 && count >= 0);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(count));
  std::uint64_t at = cursor + static_cast<std::uint64_t>(first);
  const std::uint64_t end = at + static_cast<std::uint64_t>(count);
  while (at < end) {
    const std::uint64_t epoch = epoch_of(at);
    const Permutation permutation(size(), options_.seed, epoch);
    for (const std::uint64_t stop = std::min(end, (epoch + 1) * size()); at < stop; ++at) {
      out.push_back(static_cast<std::int64_t>(permutation(at - epoch * size())));
    }
  }
  return out;
}

Result<std::vector<std::int64_t>> SamplePlan::assign(std::int64_t count,
                                                     std::span<const std::uint32_t> weights) {
  if (count < 0 || count > kMaxBatch) {
    return invalid_argument("sample plan: expected 0 to " + std::to_string(kMaxBatch) +
                            " samples to assign, found " + std::to_string(count));
  }
  const std::uint64_t total = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  if (total == 0) {
    return invalid_argument("sample plan: expected a share above 0 for at least one of " +
                            std::to_string(weights.size()) + " ranks, found none");
  }
  std::vector<std::int64_t> counts;
  std::vector<std::uint64_t> remainders;
  for (const std::uint32_t weight : weights) {
    const std::uint64_t product = static_cast<std::uint64_t>(count) * weight;  // below 2^63
    counts.push_back(static_cast<std::int64_t>(product / total));
    remainders.push_back(product % total);
  }
  const std::int64_t given = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  hand_out_rest(count - given, remainders, counts);
  return counts;
}

SampleSlice SamplePlan::slice(std::span<const std::int64_t> counts, std::size_t rank) {
  assert(rank < counts.size());
  const auto before = counts.first(rank);
  return {.first = std::accumulate(before.begin(), before.end(), std::int64_t{0}),
          .count = counts[rank]};
}

}  // namespace cox
