#include "metrics/records/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "coordinator/core/words.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

// The values of a block as whole numbers, with their divisor.
struct Codes {
  double scale = 1;
  std::array<std::int64_t, Column::kBlock> of;
};

// Sets `code` to the whole number for `value` at this scale. Returns whether decoding returns the
// same value.
bool exact_code(double value, double scale, std::int64_t& code) {
  constexpr double kMostExact = 0x1p53;
  const double scaled = value * scale;
  if (!(std::fabs(scaled) < kMostExact)) return false;
  code = std::llround(scaled);
  const double back = static_cast<double>(code) / scale;
  return std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value);
}

// Finds a decimal scale at which all values are whole numbers.
bool find_decimals(std::span<const double> values, Codes& codes) {
  for (const double scale : {1.0, 1e3, 1e6, 1e9, 1e12}) {
    const auto fits = [&](std::size_t i) {
      return is_absent(values[i]) || exact_code(values[i], scale, codes.of[i]);
    };
    codes.scale = scale;
    std::size_t i = 0;
    while (i < values.size() && fits(i)) ++i;
    if (i == values.size()) return true;
  }
  return false;
}

// Returns the exponent of the largest power of two that divides the value. REQUIRES: the value is
// finite and not 0.
int last_bit(double value) {
  int exponent = 0;
  const double mantissa = std::frexp(std::fabs(value), &exponent);
  const auto bits = static_cast<std::uint64_t>(std::ldexp(mantissa, 53));
  return exponent - 53 + std::countr_zero(bits);
}

// Finds a binary scale at which all values are whole numbers.
bool find_binaries(std::span<const double> values, Codes& codes) {
  constexpr int kLeast = -1000;
  constexpr double kMost = 0x1p62;
  int least = std::numeric_limits<int>::max();
  for (const double value : values) {
    if (is_absent(value)) continue;
    if (!std::isfinite(value) || (value == 0 && std::signbit(value))) return false;
    if (value != 0) least = std::min(least, last_bit(value));
  }
  if (least < kLeast || least > 0) return false;
  codes.scale = std::ldexp(1.0, -least);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_absent(values[i])) continue;
    const double whole = values[i] * codes.scale;
    if (!(std::fabs(whole) < kMost)) return false;
    codes.of[i] = static_cast<std::int64_t>(whole);
  }
  return true;
}

struct CodeRange {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  // Returns the bytes of a code. One code is reserved for absent values.
  std::uint8_t width() const {
    if (least > most) return 0;  // all values are absent
    const auto codes = static_cast<std::uint64_t>(most - least) + 1;
    return static_cast<std::uint8_t>((std::bit_width(codes) + 7) / 8);
  }
};

CodeRange range_of(std::span<const double> values, const Codes& codes) {
  CodeRange out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_absent(values[i])) continue;
    out.least = std::min(out.least, codes.of[i]);
    out.most = std::max(out.most, codes.of[i]);
  }
  return out;
}

std::vector<std::uint8_t> packed(std::span<const double> values, const Codes& codes,
                                 const CodeRange& range) {
  std::vector<std::uint8_t> out;
  out.reserve(values.size() * range.width());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t code =
        is_absent(values[i]) ? 0 : static_cast<std::uint64_t>(codes.of[i] - range.least) + 1;
    for (std::uint8_t b = 0; b < range.width(); ++b, code >>= 8)
      out.push_back(static_cast<std::uint8_t>(code));
  }
  return out;
}

// A step and its last row.
struct StepRow {
  std::int64_t step = 0;
  std::uint32_t row = 0;
};

std::vector<StepRow> last_rows(const RankRecord& rank) {
  std::vector<StepRow> out;
  out.reserve(rank.size());
  rank.steps.each(0, [&out](double step) {
    out.push_back({static_cast<std::int64_t>(step), static_cast<std::uint32_t>(out.size())});
  });
  const auto before = [](const StepRow& a, const StepRow& b) {
    return a.step < b.step || (a.step == b.step && a.row > b.row);
  };
  const auto same = [](const StepRow& a, const StepRow& b) { return a.step == b.step; };
  if (!std::ranges::is_sorted(out, before)) std::ranges::sort(out, before);
  // Keeps the first entry of each step, which is its last row.
  out.erase(std::unique(out.begin(), out.end(), same), out.end());
  return out;
}

// Returns whether all ranks have the same steps, each once and in order.
bool rows_agree(const RunRecord& run) {
  const Column& steps = run.ranks[0].steps;
  std::vector<double> block;
  std::vector<double> other;
  double before = -std::numeric_limits<double>::infinity();
  for (std::size_t b = 0; b < steps.blocks(); ++b) {
    steps.read(b, block);
    for (const double step : block) {
      if (!(step > before)) return false;
      before = step;
    }
    for (const RankRecord& rank : std::span(run.ranks).subspan(1)) {
      if (rank.size() != steps.size()) return false;
      rank.steps.read(b, other);
      if (other != block) return false;
    }
  }
  return std::ranges::all_of(run.ranks,
                             [&](const RankRecord& rank) { return rank.size() == steps.size(); });
}

// Counts steps that one rank recorded and another skipped, within the time that both recorded.
std::size_t missing_steps(const RunRecord& run, std::span<const std::int64_t> common) {
  std::int64_t first = std::numeric_limits<std::int64_t>::min();
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  std::set<std::int64_t> others;
  for (const RankRecord& rank : run.ranks) {
    const std::vector<StepRow> rows = last_rows(rank);
    if (rows.empty()) return 0;
    first = std::max(first, rows.front().step);
    last = std::min(last, rows.back().step);
    for (const StepRow& row : rows) {
      if (!std::ranges::binary_search(common, row.step)) others.insert(row.step);
    }
  }
  return static_cast<std::size_t>(std::ranges::count_if(
      others, [=](std::int64_t step) { return step >= first && step <= last; }));
}

}  // namespace

void Column::push(double value) {
  open_.push_back(value);
  ++size_;
  if (open_.size() < kBlock) return;
  packed_.push_back(pack(open_));
  open_.clear();
}

void Column::pad(std::size_t size) {
  while (size_ < size) push(absent());
}

void Column::close() {
  if (!open_.empty()) packed_.push_back(pack(open_));
  std::vector<double>().swap(open_);
  packed_.shrink_to_fit();
}

Column::Packed Column::pack(std::span<const double> values) {
  constexpr std::uint8_t kShort = 4;
  constexpr std::uint8_t kDoubles = sizeof(double);
  Packed out{1, 0, kDoubles, {}};
  Codes codes;
  const auto take_shorter = [&] {
    const CodeRange range = range_of(values, codes);
    if (range.width() < out.width)
      out = {codes.scale, range.least, range.width(), packed(values, codes, range)};
  };
  if (find_decimals(values, codes)) take_shorter();
  if (out.width > kShort && find_binaries(values, codes)) take_shorter();
  if (out.width < kDoubles) return out;
  out.bytes.resize(values.size_bytes());
  std::memcpy(out.bytes.data(), values.data(), values.size_bytes());
  return out;
}

void Column::read(std::size_t block, std::vector<double>& out) const {
  if (block == packed_.size()) {
    out = open_;
    return;
  }
  const Packed& packed = packed_[block];
  out.resize(std::min(kBlock, size_ - block * kBlock));
  if (packed.width == sizeof(double)) {
    std::memcpy(out.data(), packed.bytes.data(), packed.bytes.size());
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
  each(first, [&out](double value) { out.push_back(value); });
  return out;
}

bool Column::any() const {
  const auto there = [](double value) { return !is_absent(value); };
  return std::ranges::any_of(packed_, [](const Packed& p) { return p.width > 0; }) ||
         std::ranges::any_of(open_, there);
}

std::optional<double> number_setting(const RunInfo& info, std::string_view key) {
  const auto found = std::ranges::find(info.config, key, &RunSetting::key);
  return found == info.config.end() ? std::nullopt : parsed_number<double>(found->json);
}

void tell_gap(std::vector<std::string>& gaps, std::int32_t rank, std::size_t count,
              std::string_view what) {
  if (count > 0) gaps.push_back(fmt::format("rank {}: {}{}", rank, count, what));
}

CommonSteps common_steps(const RunRecord& run) {
  CommonSteps out;
  out.numbers.reserve(run.ranks[0].size());
  if (rows_agree(run)) {
    run.ranks[0].steps.each(
        0, [&out](double step) { out.numbers.push_back(static_cast<std::int64_t>(step)); });
    return out;
  }
  for (const StepRow& each : last_rows(run.ranks[0])) out.numbers.push_back(each.step);
  const auto merge = [&out](const std::vector<StepRow>& rows, const auto& take) {
    std::size_t at = 0;
    for (const std::int64_t step : out.numbers) {
      while (at < rows.size() && rows[at].step < step) ++at;
      if (at < rows.size() && rows[at].step == step) take(rows[at]);
    }
  };
  for (const RankRecord& rank : std::span(run.ranks).subspan(1)) {
    std::vector<std::int64_t> common;
    merge(last_rows(rank), [&common](const StepRow& row) { common.push_back(row.step); });
    out.numbers = std::move(common);
  }
  for (const RankRecord& rank : run.ranks) {
    std::vector<std::uint32_t>& rows = out.rows.emplace_back();
    rows.reserve(out.numbers.size());
    merge(last_rows(rank), [&rows](const StepRow& row) { rows.push_back(row.row); });
  }
  out.missing = missing_steps(run, out.numbers);
  return out;
}

void keep_newest(std::vector<Reason>& kept, std::span<const Reason> reasons) {
  const auto key_of = [](const Reason& r) { return std::tuple(r.policy, r.code, r.block); };
  std::erase_if(kept, [&](const Reason& k) {
    return std::ranges::find(reasons, key_of(k), key_of) != reasons.end();
  });
  kept.insert(kept.end(), reasons.begin(), reasons.end());
  const std::size_t oldest = kept.size() - std::min(kept.size(), kMostDecisions);
  kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(oldest));
}

void keep_start(std::vector<Reason>& kept, std::span<const Reason> reasons) {
  std::erase_if(kept, [&](const Reason& k) {
    return std::ranges::find(reasons, k.policy, &Reason::policy) != reasons.end();
  });
  keep_newest(kept, reasons);
}

const Column* find(const Columns& columns, std::string_view name) {
  const auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

double value_in(const StepLine& line, StepSection section, std::string_view name) {
  for (const StepValue& each : line.values) {
    if (each.section == section && each.name == name) return each.value;
  }
  return absent();
}

std::vector<double> values_of(const Columns& columns, std::string_view name, std::size_t steps,
                              std::size_t first) {
  if (const Column* column = find(columns, name)) return column->values(first);
  return std::vector<double>(steps - std::min(first, steps), absent());
}

double value_at(const Columns& columns, std::string_view name, std::size_t row) {
  const Column* column = find(columns, name);
  if (column == nullptr) return absent();
  std::vector<double> block;
  column->read(row / Column::kBlock, block);
  return block[row % Column::kBlock];
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
