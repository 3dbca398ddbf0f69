// Columns is a table of numbers with N columns, stored column by column in one block of memory. The
// coordinator's rounds keep one row per rank or report, so a table costs one allocation. Columns
// start in different cache sets, so a loop over all columns keeps them in the cache even if the
// number of rows is a power of two. A plain value; one thread at a time.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/core/fields.h"

namespace cox {

template <std::size_t N>
class Columns {
 public:
  Columns() = default;  // without rows
  explicit Columns(std::size_t rows) : Columns(unfilled(rows)) {
    for (std::size_t c = 0; c < N; ++c) std::ranges::fill((*this)[c], 0.0);
  }
  // Returns a table with arbitrary entries, for a caller that writes all of them.
  static Columns unfilled(std::size_t rows) {
    Columns columns;
    columns.rows_ = rows;
    columns.stride_ = rows + kApart;
    columns.values_ = std::make_unique_for_overwrite<double[]>(N * columns.stride_);
    return columns;
  }
  Columns(const Columns& other) : Columns(unfilled(other.rows_)) {
    for (std::size_t c = 0; c < N; ++c) std::ranges::copy(other[c], (*this)[c].begin());
  }
  Columns(Columns&& other) noexcept { swap(other); }
  Columns& operator=(Columns other) noexcept {
    swap(other);
    return *this;
  }
  ~Columns() = default;

  std::size_t rows() const { return rows_; }
  bool empty() const { return rows_ == 0; }

  // Returns a column with rows() entries. REQUIRES: `column` < N.
  std::span<double> operator[](std::size_t column) {
    assert(column < N);
    return {values_.get() + column * stride_, rows_};
  }
  std::span<const double> operator[](std::size_t column) const {
    assert(column < N);
    return {values_.get() + column * stride_, rows_};
  }

  // Drops all rows but the first `rows`. REQUIRES: `rows` <= rows().
  void keep_rows(std::size_t rows) {
    assert(rows <= rows_);
    rows_ = rows;
  }

  friend bool operator==(const Columns& a, const Columns& b) {
    for (std::size_t c = 0; c < N; ++c) {
      if (!std::ranges::equal(a[c], b[c])) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kApart = 72;  // padding between columns: nine cache lines

  void swap(Columns& other) noexcept {
    std::swap(rows_, other.rows_);
    std::swap(stride_, other.stride_);
    std::swap(values_, other.values_);
  }

  std::size_t rows_ = 0;
  std::size_t stride_ = 0;  // from one column to the next
  std::unique_ptr<double[]> values_;
};

// Columns as a field of a state (state_codec.h): an array of N vectors of equal sizes.
template <std::size_t N>
struct ListOf<Columns<N>> {
  using Element = std::vector<double>;
  static constexpr std::size_t kExactly = N;
  static std::size_t most(const Columns<N>&) { return N; }
  static std::size_t size(const Columns<N>&) { return N; }
  static Element at(const Columns<N>& columns, std::size_t place) {
    return {columns[place].begin(), columns[place].end()};
  }
  static bool put(Columns<N>& columns, std::size_t place, Element&& column) {
    if (place == 0) columns = Columns<N>(column.size());
    if (column.size() != columns.rows()) return false;
    std::ranges::copy(column, columns[place].begin());
    return true;
  }
};

}  // namespace cox
