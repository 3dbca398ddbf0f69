#include "coordinator/planner/plan_instances.h"

#include <algorithm>

#include "coordinator/planner/json_fields.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {
namespace {

constexpr std::size_t kMostInstances = 100'000;
constexpr std::size_t kMostBlocks = 1024;
constexpr std::size_t kMostBudgets = 10'000;

// `before` and `behind` are the boundaries of the block: its input and its output.
Stage stage_of(JsonFields& fields, const Json& block, std::int64_t before, std::int64_t behind,
               const std::string& where) {
  const std::int64_t interior = fields.integer(block, "interior", where);
  const std::int64_t forward_ws = fields.integer(block, "forward_ws", where);
  const std::int64_t backward_ws = fields.integer(block, "backward_ws", where);
  Stage stage;
  stage.forward_us = fields.integer(block, "forward_us", where);
  stage.backward_us = fields.integer(block, "backward_us", where);
  const std::int64_t forward = behind + forward_ws;
  const std::int64_t backward = behind + interior + before + backward_ws;
  stage.options[kKeep] = {true, behind + interior, forward + interior, backward, 0, 0};
  stage.options[kRecompute] = {
      true, behind, forward, std::max(backward, behind + interior + forward_ws), stage.forward_us,
      0};
  stage.options[kOffload] = {true, behind, forward + interior, backward, 0, interior};
  return stage;
}

PlanInstance instance_of(JsonFields& fields, const Json& json, std::string where) {
  PlanInstance out;
  out.id = fields.text(json, "id", where);
  if (fields.ok()) where = "instance '" + out.id + "'";
  const std::vector<Json>& blocks = fields.items(json, "blocks", 1, kMostBlocks, where);
  const std::size_t n = blocks.size();
  const std::vector<Json>& boundary = fields.items(json, "boundary", n + 1, n + 1, where);
  out.problem.base_bytes = fields.integer(json, "base", where);
  out.problem.copy_bytes_per_ms = fields.integer(json, "bandwidth", where);
  std::vector<std::int64_t> edges;
  for (const Json& edge : boundary) edges.push_back(fields.integer(edge, where + ": boundary"));
  if (!fields.ok()) return out;
  out.problem.base_bytes += edges[0];
  for (std::size_t i = 0; i < n; ++i) {
    out.problem.stages.push_back(stage_of(fields, blocks[i], edges[i], edges[i + 1],
                                          where + ": block " + std::to_string(i)));
    out.problem.stages.back().block = static_cast<std::int32_t>(i);
    if (out.problem.copy_bytes_per_ms == 0)
      out.problem.stages.back().options[kOffload].allowed = false;
  }
  for (const Json& b : fields.items(json, "budgets", 0, kMostBudgets, where)) {
    const bool is_bare = b.kind == JsonKind::number;
    out.budgets.push_back(is_bare ? fields.integer(b, where + ": budgets")
                                  : fields.integer(b, "budget", where + ": budgets"));
  }
  if (!fields.ok()) return out;
  if (const Status status = validate(out.problem); !status.ok())
    fields.fail(where + ": " + status.message());
  return out;
}

}  // namespace

Result<std::vector<PlanInstance>> read_instances(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxPlanFileBytes);
  if (!json.ok()) return json.status();
  JsonFields fields;
  std::vector<PlanInstance> out;
  const std::vector<Json>& all = fields.items(*json, "instances", 1, kMostInstances, "instances");
  for (std::size_t i = 0; i < all.size() && fields.ok(); ++i)
    out.push_back(instance_of(fields, all[i], "instance " + std::to_string(i)));
  if (!fields.ok()) return fields.status();
  return out;
}

std::string letters(const std::vector<MemoryAction>& actions) {
  constexpr std::string_view kLetters = "KROT";
  std::string out;
  for (const MemoryAction a : actions) out += kLetters[static_cast<std::size_t>(a)];
  return out;
}

}  // namespace cox::planner
