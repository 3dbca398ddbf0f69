// Operator graphs of whole steps as files, for `cox plan --ops`; the format is on
// docs/operator-graphs.md. Pure text in and out; the text may be hostile. Errors are
// invalid_argument and name the operator and field; data_loss where the text is no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/planner/step_graph.h"

namespace cox::io {

inline constexpr std::size_t kMaxOperatorFileBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxOperatorTensors = 1024;  // that one operator reads, or makes
inline constexpr std::string_view kOperatorFormat = "coxswain-operator-graph";
inline constexpr std::int64_t kOperatorVersion = 1;

// Returns the graph as JSON with one operator a line. The text ends with a line feed.
std::string to_json(const planner::StepGraph& graph);

// Reads a graph that planner::validate() accepts. Refuses a version that it does not know.
Result<planner::StepGraph> read_operator_graph(std::string_view text);

}  // namespace cox::io
