#include "coordinator/core/operator_table.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "coordinator/core/settings/section.h"

namespace cox {
namespace {

void add(OperatorRow& sum, const OperatorRow& row) {
  sum.calls += row.calls;
  sum.forward_ns += row.forward_ns;
  sum.result_bytes += row.result_bytes;
  if (!row.flops) return;
  if (!sum.flops) sum.flops.emplace();
  sum.flops->forward += row.flops->forward;
  sum.flops->backward += row.flops->backward;
}

auto key_of(const OperatorRow& row) {
  return std::tie(row.name, row.block);
}

double size_of(const OperatorRow& row, OperatorOrder order) {
  switch (order) {
    case OperatorOrder::time:
      return static_cast<double>(row.forward_ns);
    case OperatorOrder::bytes:
      return static_cast<double>(row.result_bytes);
    case OperatorOrder::flops:
      return row.flops ? row.flops->sum() : -1;
  }
  return 0;
}

}  // namespace

void add_row(OperatorTable& table, std::string_view name, std::string_view block,
             const OperatorRow& counts) {
  const auto key = std::make_tuple(name, block);
  const auto of = [](const OperatorRow& row) {
    return std::make_tuple(std::string_view(row.name), std::string_view(row.block));
  };
  auto found = std::ranges::lower_bound(table.rows, key, {}, of);
  if (found == table.rows.end() || of(*found) != key) {
    OperatorRow row;
    row.name = name;
    row.block = block;
    found = table.rows.insert(found, std::move(row));
  }
  add(*found, counts);
}

std::vector<OperatorRow> by_operator(const OperatorTable& table, std::string_view block_pattern) {
  std::vector<OperatorRow> rows;
  for (const OperatorRow& row : table.rows) {
    if (!fits_pattern(block_pattern, row.block)) continue;
    if (rows.empty() || rows.back().name != row.name) rows.push_back({row.name, {}});
    add(rows.back(), row);
  }
  return rows;
}

std::vector<OperatorRow> by_block(const OperatorTable& table) {
  std::map<std::string_view, OperatorRow> sums;
  for (const OperatorRow& row : table.rows) add(sums[row.block], row);
  std::vector<OperatorRow> rows;
  for (const BlockTime& block : table.blocks) {
    const auto found = sums.find(block.name);
    if (found == sums.end()) continue;
    rows.push_back(std::move(found->second));
    rows.back().block = block.name;
    sums.erase(found);
  }
  return rows;
}

OperatorRow sum_of(std::span<const OperatorRow> rows) {
  OperatorRow sum;
  for (const OperatorRow& row : rows) add(sum, row);
  return sum;
}

std::optional<double> flops_of_step(const OperatorTable& table) {
  const OperatorRow sum = sum_of(table.rows);
  if (table.steps == 0 || !sum.flops) return std::nullopt;
  const double flops = sum.flops->sum() / static_cast<double>(table.steps);
  return flops > 0 ? std::optional(flops) : std::nullopt;
}

OperatorRow uncounted_of(std::span<const OperatorRow> rows) {
  OperatorRow sum;
  for (const OperatorRow& row : rows) {
    if (!row.flops) add(sum, row);
  }
  return sum;
}

void sort_rows(std::vector<OperatorRow>& rows, OperatorOrder order) {
  std::ranges::sort(rows, [order](const OperatorRow& a, const OperatorRow& b) {
    const double left = size_of(a, order);
    const double right = size_of(b, order);
    return left != right ? left > right : key_of(a) < key_of(b);
  });
}

}  // namespace cox
