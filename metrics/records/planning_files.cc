#include "metrics/records/planning_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/units.h"
#include "coordinator/io/json_fields.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::io {
namespace {

using planner::kActions;
using planner::kKeep;
using planner::kMaxStageValue;
using planner::kOffload;
using planner::kRecompute;
using planner::RankProfile;

constexpr std::size_t kMostInstances = 100'000;
constexpr std::size_t kMostBlocks = 1024;
constexpr std::size_t kMostBudgets = 10'000;

struct OptionField {
  std::string_view name;
  std::int64_t StageOption::*value;
};

constexpr std::array<OptionField, 6> kOptionFields = {
    {{"kept_bytes", &StageOption::kept_bytes},
     {"forward_high_bytes", &StageOption::forward_high_bytes},
     {"backward_high_bytes", &StageOption::backward_high_bytes},
     {"added_us", &StageOption::added_us},
     {"copied_bytes", &StageOption::copied_bytes},
     {"stored_bytes", &StageOption::stored_bytes}}};

// Returns "recompute", "recompute_2".
std::string member_of(std::size_t action) {
  std::string name(kMemoryActionNames[action]);
  std::ranges::replace(name, ' ', '_');
  return name;
}

void write_stage(JsonWriter& json, const Stage& stage, const std::string& name) {
  json.new_line(4).begin_object().field("name", name);
  if (stage.block != kGap) json.field("block", stage.block);
  json.field("forward_us", stage.forward_us).field("backward_us", stage.backward_us);
  for (std::size_t a = 0; a < kActions; ++a) {
    if (!stage.options[a].allowed) continue;
    json.key(member_of(a)).begin_object();
    for (const OptionField& field : kOptionFields)
      json.field(field.name, stage.options[a].*field.value);
    json.end_object();
  }
  json.end_object();
}

void write_profile(JsonWriter& json, const RankProfile& profile) {
  const MemoryProblem& problem = profile.problem;
  json.new_line(2).begin_object().key("ranks").begin_array();
  for (const std::int32_t rank : profile.ranks) json.value(rank);
  json.end_array()
      .field("base_bytes", problem.base_bytes)
      .field("limit_bytes", profile.limit_bytes)
      .field("copy_bytes_per_ms", problem.copy_bytes_per_ms);
  if (problem.tier_bytes) json.field("tier_bytes", *problem.tier_bytes);
  if (problem.most_recomputed) json.field("most_recomputed", *problem.most_recomputed);
  json.key("stages").begin_array();
  for (std::size_t i = 0; i < problem.stages.size(); ++i)
    write_stage(json, problem.stages[i], profile.stage_names[i]);
  json.end_array().end_object();
}

// Reads members of one document. Numbers of problems are whole and bounded.
class ProblemFields : public JsonFields {
 public:
  using JsonFields::integer;
  std::int64_t integer(const Json& object, std::string_view name, const std::string& where) {
    return integer(object, name, kMaxStageValue, where);
  }
  std::optional<std::int64_t> integer_if_any(const Json& object, std::string_view name,
                                             const std::string& where) {
    if (!object.find(name)) return std::nullopt;
    return integer(object, name, where);
  }
  std::int32_t small(const Json& value, std::int64_t most, const std::string& where) {
    return static_cast<std::int32_t>(integer(value, most, where));
  }
  // Fails if the planner refuses the problem.
  void check(const MemoryProblem& problem, const std::string& where) {
    if (!ok()) return;
    if (const Status status = planner::validate(problem); !status.ok())
      fail(fmt::format("{}: {}", where, status.message()));
  }
};

StageOption option_of(ProblemFields& fields, const Json& json, const std::string& where) {
  StageOption out;
  out.allowed = true;
  for (const OptionField& field : kOptionFields)
    out.*field.value = fields.integer(json, field.name, where);
  return out;
}

Stage stage_of(ProblemFields& fields, const Json& json, const std::string& where) {
  Stage stage;
  stage.forward_us = fields.integer(json, "forward_us", where);
  stage.backward_us = fields.integer(json, "backward_us", where);
  if (const Json* block = json.find("block"))
    stage.block = fields.small(*block, kMaxBlocks - 1, fmt::format("{}: block", where));
  for (std::size_t a = 0; a < kActions; ++a) {
    const std::string name = member_of(a);
    const Json* option = json.find(name);
    if (option) stage.options[a] = option_of(fields, *option, fmt::format("{}: {}", where, name));
  }
  return stage;
}

RankProfile profile_of(ProblemFields& fields, const Json& json, const std::string& where) {
  RankProfile out;
  for (const Json& rank : fields.items(json, "ranks", 0, kMaxRanks, where))
    out.ranks.push_back(fields.small(rank, kMaxRanks - 1, fmt::format("{}: ranks", where)));
  MemoryProblem& problem = out.problem;
  problem.base_bytes = fields.integer(json, "base_bytes", where);
  out.limit_bytes = fields.integer_if_any(json, "limit_bytes", where).value_or(0);
  problem.copy_bytes_per_ms = fields.integer(json, "copy_bytes_per_ms", where);
  problem.tier_bytes = fields.integer_if_any(json, "tier_bytes", where);
  if (const Json* most = json.find("most_recomputed"))
    problem.most_recomputed =
        fields.small(*most, kMaxBlocks, fmt::format("{}: most_recomputed", where));
  const std::vector<Json>& stages = fields.items(json, "stages", 1, planner::kMaxStages, where);
  for (std::size_t i = 0; i < stages.size() && fields.ok(); ++i) {
    const std::string stage = fmt::format("{}: stage {}", where, i);
    out.stage_names.push_back(fields.text(stages[i], "name", stage));
    if (fields.ok()) problem.stages.push_back(stage_of(fields, stages[i], stage));
  }
  fields.check(problem, where);
  return out;
}

// `before` and `behind` are the sizes of the block's input and output.
Stage block_of(ProblemFields& fields, const Json& block, std::int64_t before, std::int64_t behind,
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

PlanInstance instance_of(ProblemFields& fields, const Json& json, std::string where) {
  PlanInstance out;
  out.id = fields.text(json, "id", where);
  if (fields.ok()) where = fmt::format("instance '{}'", out.id);
  const std::vector<Json>& blocks = fields.items(json, "blocks", 1, kMostBlocks, where);
  const std::size_t n = blocks.size();
  const std::vector<Json>& boundary = fields.items(json, "boundary", n + 1, n + 1, where);
  out.problem.base_bytes = fields.integer(json, "base", where);
  out.problem.copy_bytes_per_ms = fields.integer(json, "bandwidth", where);
  std::vector<std::int64_t> edges;
  for (const Json& edge : boundary)
    edges.push_back(fields.integer(edge, kMaxStageValue, fmt::format("{}: boundary", where)));
  if (!fields.ok()) return out;
  out.problem.base_bytes += edges[0];
  for (std::size_t i = 0; i < n; ++i) {
    Stage stage =
        block_of(fields, blocks[i], edges[i], edges[i + 1], fmt::format("{}: block {}", where, i));
    stage.block = static_cast<std::int32_t>(i);
    if (out.problem.copy_bytes_per_ms == 0) stage.options[kOffload].allowed = false;
    out.problem.stages.push_back(stage);
  }
  for (const Json& b : fields.items(json, "budgets", 0, kMostBudgets, where)) {
    const bool is_bare = b.kind == JsonKind::number;
    out.budgets.push_back(is_bare
                              ? fields.integer(b, kMaxStageValue, fmt::format("{}: budgets", where))
                              : fields.integer(b, "budget", fmt::format("{}: budgets", where)));
  }
  fields.check(out.problem, where);
  return out;
}

}  // namespace

std::string to_json(const planner::MemoryProfile& profile) {
  JsonWriter json;
  json.begin_object().field("format", kProfileFormat).field("version", kProfileVersion);
  json.key("profiles").begin_array();
  for (const RankProfile& rank : profile.profiles) write_profile(json, rank);
  json.new_line().end_array().end_object();
  return json.take() + "\n";
}

Result<planner::MemoryProfile> read_memory_profile(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxPlanningFileBytes);
  if (!json.ok()) return json.status();
  ProblemFields fields;
  fields.format(*json, kProfileFormat, kProfileVersion, "memory profile");
  planner::MemoryProfile out;
  const auto& all = fields.items(*json, "profiles", 1, kMaxMemoryModels, "memory profile");
  for (std::size_t i = 0; i < all.size() && fields.ok(); ++i)
    out.profiles.push_back(profile_of(fields, all[i], fmt::format("profile {}", i)));
  if (!fields.ok()) return fields.status();
  return out;
}

Result<std::vector<PlanInstance>> read_instances(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxPlanningFileBytes);
  if (!json.ok()) return json.status();
  ProblemFields fields;
  std::vector<PlanInstance> out;
  const std::vector<Json>& all = fields.items(*json, "instances", 1, kMostInstances, "instances");
  for (std::size_t i = 0; i < all.size() && fields.ok(); ++i)
    out.push_back(instance_of(fields, all[i], fmt::format("instance {}", i)));
  if (!fields.ok()) return fields.status();
  return out;
}

std::string letters(const std::vector<MemoryAction>& actions) {
  constexpr std::string_view kLetters = "KROT1234567";
  static_assert(kLetters.size() == kMemoryActionNames.size());
  std::string out;
  for (const MemoryAction a : actions) out += kLetters[static_cast<std::size_t>(a)];
  return out;
}

}  // namespace cox::io
