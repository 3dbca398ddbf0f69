#include "sdk/src/shard/write_order.h"

#include <array>
#include <atomic>
#include <utility>

#include "coordinator/core/split_mix.h"

namespace cox::detail {

// A rank leaves write n only after all ranks have arrived at n, so at most two numbers are in use
// at a time.
struct alignas(transport::kLine) WriteOrder::Line {
  static constexpr std::size_t kNumbers = 4;

  std::atomic<std::uint64_t> arrived;
  std::atomic<std::uint64_t> completed;
  std::array<std::atomic<std::uint64_t>, kNumbers> what;

  std::atomic<std::uint64_t>& what_of(std::uint64_t number) { return what[number % kNumbers]; }
};

std::size_t WriteOrder::bytes_needed(std::int32_t ranks) {
  return static_cast<std::size_t>(ranks) * sizeof(Line);
}

WriteOrder::WriteOrder(transport::SharedSegment memory, std::int32_t rank, std::int32_t ranks,
                       Wait wait)
    : memory_(std::move(memory)), rank_(rank), ranks_(ranks), wait_(std::move(wait)) {}

// Zeroed memory is a valid Line, because its atomics are lock-free numbers.
WriteOrder::Line& WriteOrder::line(std::int32_t rank) const {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  return reinterpret_cast<Line*>(memory_.bytes().data())[rank];
}

std::optional<std::int32_t> WriteOrder::arrive(std::uint64_t what) {
  const std::uint64_t number = ++number_;
  line(rank_).what_of(number).store(what, std::memory_order_relaxed);
  line(rank_).arrived.store(number, std::memory_order_release);
  wait_([this, number] {
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      if (line(rank).arrived.load(std::memory_order_acquire) < number) return false;
    }
    return true;
  });
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (line(rank).what_of(number).load(std::memory_order_relaxed) != what) return rank;
  }
  return std::nullopt;
}

bool WriteOrder::has_any_arrived_behind(std::uint64_t number) const {
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (line(rank).arrived.load(std::memory_order_acquire) > number) return true;
  }
  return false;
}

void WriteOrder::complete() {
  line(rank_).completed.store(number_, std::memory_order_release);
}

bool WriteOrder::have_all_completed() const {
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    if (line(rank).completed.load(std::memory_order_acquire) < number_) return false;
  }
  return true;
}

void WriteOrder::wait_for_completed() {
  if (is_up_to_date()) return;
  if (!have_all_completed()) wait_([this] { return have_all_completed(); });
  completed_seen_ = number_;
}

void UpdateSequences::begin() {
  if (written_ != 0) ends_.insert(written_);
  if (beginnings_.size() > kMost) {
    beginnings_.clear();
    ends_.clear();
  }
  written_ = 0;
  departed_ = false;
}

bool UpdateSequences::note(std::uint64_t what) {
  written_ = (written_ ^ what) * kGolden + 1;
  const bool is_known = !beginnings_.insert(written_).second;
  if (is_known && !departed_) return ends_.contains(written_);
  if (!std::exchange(departed_, true)) ++new_sequences_;
  return true;
}

}  // namespace cox::detail
