#include "coordinator/io/operator_files.h"

#include <vector>

#include "coordinator/io/json_fields.h"

namespace cox::io {
namespace {

using planner::kMaxStepNumber;
using planner::kMaxStepOperators;
using planner::kMaxStepTensors;
using planner::StepGraph;
using planner::StepOperator;

void write_indices(JsonWriter& json, std::string_view name, const std::vector<std::int32_t>& list) {
  json.key(name).begin_array();
  for (const std::int32_t index : list) json.value(index);
  json.end_array();
}

std::vector<std::int32_t> indices(JsonFields& fields, const Json& json, std::string_view name,
                                  std::size_t most, std::size_t tensors, const std::string& where) {
  std::vector<std::int32_t> list;
  for (const Json& item : fields.items(json, name, 0, most, where)) {
    list.push_back(static_cast<std::int32_t>(fields.integer(
        item, static_cast<std::int64_t>(tensors) - 1, where + ": " + std::string(name))));
    if (!fields.ok()) break;
  }
  return list;
}

void read_tensors(JsonFields& fields, const Json& json, StepGraph& graph) {
  const std::string where = "operator graph";
  for (const Json& bytes : fields.items(json, "tensors", 0, kMaxStepTensors, where)) {
    graph.tensors.push_back({fields.integer(bytes, kMaxStepNumber, where + ": tensors"), false});
    if (!fields.ok()) return;
  }
  for (const std::int32_t t :
       indices(fields, json, "results", kMaxStepTensors, graph.tensors.size(), where)) {
    if (fields.ok()) graph.tensors[static_cast<std::size_t>(t)].is_result = true;
  }
}

StepOperator operator_of(JsonFields& fields, const Json& json, std::size_t tensors,
                         const std::string& where) {
  StepOperator out;
  out.name = fields.text(json, "name", where);
  out.ns = fields.integer(json, "ns", kMaxStepNumber, where);
  out.reads = indices(fields, json, "reads", kMaxOperatorTensors, tensors, where);
  out.makes = indices(fields, json, "makes", kMaxOperatorTensors, tensors, where);
  return out;
}

}  // namespace

std::string to_json(const StepGraph& graph) {
  JsonWriter json;
  json.begin_object().field("format", kOperatorFormat).field("version", kOperatorVersion);
  json.field("name", graph.name).field("base_bytes", graph.base_bytes);
  std::vector<std::int32_t> results;
  json.new_line().key("tensors").begin_array();
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    json.value(graph.tensors[t].bytes);
    if (graph.tensors[t].is_result) results.push_back(static_cast<std::int32_t>(t));
  }
  json.end_array().new_line();
  write_indices(json, "results", results);
  json.new_line().key("operators").begin_array();
  for (const StepOperator& it : graph.operators) {
    json.new_line().begin_object().field("name", it.name).field("ns", it.ns);
    write_indices(json, "reads", it.reads);
    write_indices(json, "makes", it.makes);
    json.end_object();
  }
  json.new_line().end_array().end_object();
  return json.take() + "\n";
}

Result<StepGraph> read_operator_graph(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxOperatorFileBytes);
  if (!json.ok()) return json.status();
  const std::string where = "operator graph";
  JsonFields fields;
  const std::string format = fields.text(*json, "format", where);
  if (fields.ok() && format != kOperatorFormat)
    fields.fail(where + ": expected the format '" + std::string(kOperatorFormat) +
                "', found another");
  const std::int64_t version = fields.integer(*json, "version", kMaxStepNumber, where);
  if (fields.ok() && version != kOperatorVersion)
    fields.fail(where + ": expected version " + std::to_string(kOperatorVersion) + ", found " +
                std::to_string(version) + ": written by another release");
  StepGraph graph;
  graph.name = fields.text(*json, "name", where);
  graph.base_bytes = fields.integer(*json, "base_bytes", kMaxStepNumber, where);
  if (fields.ok()) read_tensors(fields, *json, graph);
  const auto& operators = fields.items(*json, "operators", 1, kMaxStepOperators, where);
  for (std::size_t i = 0; i < operators.size() && fields.ok(); ++i)
    graph.operators.push_back(operator_of(fields, operators[i], graph.tensors.size(),
                                          where + ": operator " + std::to_string(i)));
  if (!fields.ok()) return fields.status();
  if (const Status status = planner::validate(graph); !status.ok()) return status;
  return graph;
}

}  // namespace cox::io
