// Columns: a table of numbers with N columns, stored column by column in one block of memory. The
// rounds of the coordinator keep one row per rank or report in it, so that a round of seven columns
// costs one allocation. A plain value; one thread at a time.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/core/state_codec.h"

namespace cox {

template <std::size_t N>
class Columns {
 public:
  Columns() = default;  // without rows
  explicit Columns(std::size_t rows) : rows_(rows), values_(N * rows) {}

  std::size_t rows() const { return rows_; }
  bool empty() const { return rows_ == 0; }

  // Return a column with rows() entries. REQUIRES: `column` < N.
  std::span<double> operator[](std::size_t column) {
    assert(column < N);
    return std::span(values_).subspan(column * rows_, rows_);
  }
  std::span<const double> operator[](std::size_t column) const {
    assert(column < N);
    return std::span(values_).subspan(column * rows_, rows_);
  }

  // Drops all rows but the first `rows`. REQUIRES: `rows` <= rows().
  void keep_rows(std::size_t rows) {
    assert(rows <= rows_);
    if (rows == rows_) return;
    for (std::size_t c = 1; c < N; ++c) {
      const auto from = values_.begin() + static_cast<std::ptrdiff_t>(c * rows_);
      std::copy_n(from, rows, values_.begin() + static_cast<std::ptrdiff_t>(c * rows));
    }
    rows_ = rows;
    values_.resize(N * rows);
  }

  friend bool operator==(const Columns&, const Columns&) = default;

 private:
  std::size_t rows_ = 0;
  std::vector<double> values_;
};

// As a field of a state (state_codec.h) it is an array of N vectors of equal sizes.
template <std::size_t N>
void write(ByteWriter& out, const Columns<N>& columns) {
  for (std::size_t c = 0; c < N; ++c) {
    out.varint(columns.rows());
    for (const double value : columns[c]) out.f64(value);
  }
}

template <std::size_t N>
void read(ByteReader& in, Columns<N>& columns) {
  std::vector<double> column;
  for (std::size_t c = 0; c < N && !in.failed(); ++c) {
    state_codec::read_vector(in, column);
    if (c == 0) columns = Columns<N>(in.failed() ? 0 : column.size());
    if (column.size() != columns.rows()) return in.fail();
    std::ranges::copy(column, columns[c].begin());
  }
}

}  // namespace cox
