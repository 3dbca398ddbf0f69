#include "coordinator/diagnosis/run_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kMostExact = 0x1p53;

// The whole number that stands for `value` at this scale, if it gives back the same value.
bool exact_code(double value, double scale, std::int64_t& code) {
  const double scaled = value * scale;
  if (!(std::fabs(scaled) < kMostExact)) return false;
  const double whole = std::nearbyint(scaled);
  if (std::bit_cast<std::uint64_t>(whole / scale) != std::bit_cast<std::uint64_t>(value))
    return false;
  code = static_cast<std::int64_t>(whole);
  return true;
}

std::uint8_t bytes_for(std::uint64_t most) {
  std::uint8_t bytes = 0;
  while (most != 0) {
    ++bytes;
    most >>= 8;
  }
  return bytes;
}

}  // namespace

void Column::push(double value) {
  open_.push_back(value);
  if (open_.size() < kBlock) return;
  packed_.push_back(pack(open_));
  open_.clear();
}

void Column::pad(std::size_t size) {
  while (this->size() < size) push(absent());
}

bool Column::pack_decimals(std::span<const double> values, double scale, Packed& out) {
  std::array<std::int64_t, kBlock> codes;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_absent(values[i])) continue;
    if (!exact_code(values[i], scale, codes[i])) return false;
    least = std::min(least, codes[i]);
    most = std::max(most, codes[i]);
  }
  out = Packed{scale, least, 0, {}};
  if (least > most) return true;  // nothing is there
  out.width = bytes_for(static_cast<std::uint64_t>(most - least) + 1);
  if (out.width > 4) return false;
  out.bytes.reserve(values.size() * out.width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t code =
        is_absent(values[i]) ? 0 : static_cast<std::uint64_t>(codes[i] - least) + 1;
    for (std::uint8_t b = 0; b < out.width; ++b, code >>= 8)
      out.bytes.push_back(static_cast<std::uint8_t>(code));
  }
  return true;
}

Column::Packed Column::pack(std::span<const double> values) {
  Packed packed;
  for (const double scale : {1.0, 1e3, 1e6, 1e9}) {
    if (pack_decimals(values, scale, packed)) return packed;
  }
  packed = Packed{1, 0, 8, std::vector<std::uint8_t>(values.size_bytes())};
  std::memcpy(packed.bytes.data(), values.data(), values.size_bytes());
  return packed;
}

void Column::read(std::size_t block, std::vector<double>& out) const {
  if (block == packed_.size()) {
    out = open_;
    return;
  }
  const Packed& packed = packed_[block];
  out.resize(kBlock);
  if (packed.width == 8) {
    std::memcpy(out.data(), packed.bytes.data(), kBlock * sizeof(double));
    return;
  }
  const std::uint8_t* at = packed.bytes.data();
  for (double& value : out) {
    std::uint64_t code = 0;
    for (std::uint8_t b = 0; b < packed.width; ++b) code |= std::uint64_t{*at++} << (8 * b);
    const auto whole = packed.base + static_cast<std::int64_t>(code) - 1;
    value = code == 0 ? absent() : static_cast<double>(whole) / packed.scale;
  }
}

std::vector<double> Column::values(std::size_t first) const {
  std::vector<double> out;
  if (first >= size()) return out;
  out.reserve(size() - first);
  std::vector<double> block;
  for (std::size_t b = first / kBlock; b < blocks(); ++b) {
    read(b, block);
    const std::size_t skip = b == first / kBlock ? first % kBlock : 0;
    out.insert(out.end(), block.begin() + static_cast<std::ptrdiff_t>(skip), block.end());
  }
  return out;
}

bool Column::any() const {
  const auto there = [](double value) { return !is_absent(value); };
  return std::ranges::any_of(packed_, [](const Packed& p) { return p.width > 0; }) ||
         std::ranges::any_of(open_, there);
}

void keep_newest(std::vector<Reason>& kept, std::span<const Reason> reasons) {
  for (const Reason& reason : reasons) {
    std::erase_if(kept, [&reason](const Reason& k) {
      return k.policy == reason.policy && k.code == reason.code && k.block == reason.block;
    });
    kept.push_back(reason);
    if (kept.size() > kMostDecisions) kept.erase(kept.begin());
  }
}

const Column* find(const Columns& columns, std::string_view name) {
  const auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

std::vector<double> values_of(const Columns& columns, std::string_view name, std::size_t steps,
                              std::size_t first) {
  if (const Column* column = find(columns, name)) return column->values(first);
  return std::vector<double>(steps - std::min(first, steps), absent());
}

std::vector<double> row_sums(const Columns& columns, std::size_t steps, std::size_t first,
                             std::span<const std::string_view> without) {
  std::vector<double> out;
  out.reserve(steps - std::min(first, steps));
  std::vector<std::vector<double>> rows;
  std::vector<const Column*> chosen;
  for (const auto& [name, column] : columns) {
    if (std::ranges::find(without, name) == without.end()) chosen.push_back(&column);
  }
  rows.resize(chosen.size());
  for (std::size_t at = first - first % Column::kBlock; at < steps; at += Column::kBlock) {
    for (std::size_t c = 0; c < chosen.size(); ++c) chosen[c]->read(at / Column::kBlock, rows[c]);
    const std::size_t end = std::min(at + Column::kBlock, steps);
    for (std::size_t i = std::max(first, at); i < end; ++i) {
      ExactSum sum;
      for (const auto& row : rows) {
        if (!is_absent(row[i - at])) sum.add(row[i - at]);
      }
      out.push_back(sum.value());
    }
  }
  return out;
}

}  // namespace cox::diagnosis
