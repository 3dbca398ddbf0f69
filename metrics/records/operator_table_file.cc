#include "metrics/records/operator_table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/io/json_fields.h"

namespace cox::io {
namespace {

constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
const std::string kTable = "table of operators";

void write_row(JsonWriter& json, const OperatorRow& row) {
  json.new_line().begin_object().field("name", row.name).field("block", row.block);
  json.field("calls", row.calls).field("forward_ns", row.forward_ns);
  json.field("result_bytes", row.result_bytes);
  if (row.flops) {
    json.field("forward_flops", row.flops->forward);
    json.field("backward_flops", row.flops->backward);
  }
  json.end_object();
}

std::uint64_t whole(JsonFields& fields, const Json& json, std::string_view name,
                    const std::string& where) {
  return static_cast<std::uint64_t>(fields.integer(json, name, kMostCount, where));
}

double amount(JsonFields& fields, const Json& json, std::string_view name,
              const std::string& where) {
  const double value = fields.number(json, name, where);
  if (fields.ok() && !(value >= 0 && std::isfinite(value)))
    fields.fail(
        fmt::format("{}: {}: expected 0 or more, found {}", where, name, json_number(value)));
  return value;
}

BlockTime block_of(JsonFields& fields, const Json& json, const std::string& where) {
  BlockTime block;
  block.name = fields.text(json, "name", where);
  block.forward_seconds = amount(fields, json, "forward_seconds", where);
  block.backward_seconds = amount(fields, json, "backward_seconds", where);
  return block;
}

OperatorRow row_of(JsonFields& fields, const Json& json, const std::string& where) {
  OperatorRow row;
  row.name = fields.text(json, "name", where);
  row.block = fields.text(json, "block", where);
  row.calls = whole(fields, json, "calls", where);
  row.forward_ns = whole(fields, json, "forward_ns", where);
  row.result_bytes = whole(fields, json, "result_bytes", where);
  if (json.find("forward_flops") == nullptr && json.find("backward_flops") == nullptr) return row;
  row.flops = OperatorFlops{amount(fields, json, "forward_flops", where),
                            amount(fields, json, "backward_flops", where)};
  return row;
}

auto key_of(const OperatorRow& row) {
  return std::tie(row.name, row.block);
}

}  // namespace

std::string to_json(const OperatorTable& table) {
  std::vector<OperatorRow> rows = table.rows;
  if (rows.size() > kMaxOperatorRows) {
    sort_rows(rows, OperatorOrder::time);
    rows.resize(kMaxOperatorRows);
    std::ranges::sort(rows, {}, key_of);
  }
  JsonWriter json;
  json.begin_object().field("format", kOperatorTableFormat);
  json.field("version", kOperatorTableVersion).field("steps", table.steps);
  json.field("newest_step", table.newest).new_line().key("blocks").begin_array();
  for (const BlockTime& block : table.blocks) {
    json.new_line().begin_object().field("name", block.name);
    json.field("forward_seconds", block.forward_seconds);
    json.field("backward_seconds", block.backward_seconds).end_object();
  }
  json.new_line().end_array().new_line().key("operators").begin_array();
  for (const OperatorRow& row : rows) write_row(json, row);
  json.new_line().end_array().end_object();
  return json.take() + "\n";
}

Result<OperatorTable> read_operator_table(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxOperatorTableBytes);
  if (!json.ok()) return json.status();
  JsonFields fields;
  fields.format(*json, kOperatorTableFormat, kOperatorTableVersion, kTable);
  OperatorTable table;
  table.steps = whole(fields, *json, "steps", kTable);
  table.newest = StepId(whole(fields, *json, "newest_step", kTable));
  const auto& blocks = fields.items(*json, "blocks", 0, kMaxBlocks, kTable);
  for (std::size_t b = 0; b < blocks.size() && fields.ok(); ++b)
    table.blocks.push_back(block_of(fields, blocks[b], fmt::format("{}: block {}", kTable, b)));
  const auto& rows = fields.items(*json, "operators", 0, kMaxOperatorRows, kTable);
  for (std::size_t r = 0; r < rows.size() && fields.ok(); ++r)
    table.rows.push_back(row_of(fields, rows[r], fmt::format("{}: operator {}", kTable, r)));
  if (fields.ok() && table.steps == 0)
    fields.fail(fmt::format("{}: steps: expected 1 or more, found 0", kTable));
  const bool is_sorted = std::ranges::is_sorted(table.rows, {}, key_of);
  const bool has_twice = std::ranges::adjacent_find(table.rows, {}, key_of) != table.rows.end();
  if (fields.ok() && (!is_sorted || has_twice))
    fields.fail(fmt::format(
        "{}: expected operators in the order of their names and blocks, each once", kTable));
  if (!fields.ok()) return fields.status();
  return table;
}

}  // namespace cox::io
