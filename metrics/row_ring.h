// A ring of rows between one writing and one reading thread. No locks, no allocation after
// construction, no system calls; a full ring refuses instead of waiting.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

namespace cox::metrics {

template <class Row>
class RowRing {
 public:
  // Requires: capacity >= 1. It is rounded up to a power of two.
  explicit RowRing(std::size_t capacity) : rows_(std::bit_ceil(capacity)) {}

  std::size_t capacity() const { return rows_.size(); }

  // On the writing thread. False when full.
  bool push(const Row& row) {
    const std::size_t at = written_.load(std::memory_order_relaxed);
    if (at - read_.load(std::memory_order_acquire) == rows_.size()) return false;
    rows_[at & (rows_.size() - 1)] = row;
    written_.store(at + 1, std::memory_order_release);
    return true;
  }

  // On the reading thread. Empty when there is nothing.
  std::optional<Row> pop() {
    const std::size_t at = read_.load(std::memory_order_relaxed);
    if (at == written_.load(std::memory_order_acquire)) return std::nullopt;
    const Row row = rows_[at & (rows_.size() - 1)];
    read_.store(at + 1, std::memory_order_release);
    return row;
  }

 private:
  std::vector<Row> rows_;
  alignas(64) std::atomic<std::size_t> written_{0};
  alignas(64) std::atomic<std::size_t> read_{0};
};

}  // namespace cox::metrics
