#include "coordinator/planner/memory_profile.h"

#include <array>
#include <optional>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/units.h"
#include "coordinator/planner/json_fields.h"
#include "coordinator/planner/memory_problem.h"

namespace cox::planner {
namespace {

struct Field {
  std::string_view name;
  std::int64_t StageOption::*value;
};

constexpr std::array<Field, 6> kFields = {
    {{"kept_bytes", &StageOption::kept_bytes},
     {"forward_high_bytes", &StageOption::forward_high_bytes},
     {"backward_high_bytes", &StageOption::backward_high_bytes},
     {"added_us", &StageOption::added_us},
     {"copied_bytes", &StageOption::copied_bytes},
     {"stored_bytes", &StageOption::stored_bytes}}};

std::string number(std::string_view name, std::int64_t value) {
  return json_quote(name) + ": " + std::to_string(value);
}

std::string option_text(const StageOption& option) {
  std::string out;
  for (const Field& field : kFields)
    out += (out.empty() ? "{" : ", ") + number(field.name, option.*field.value);
  return out + "}";
}

std::string stage_text(const Stage& stage, const std::string& name) {
  std::string out = "{\"name\": " + json_quote(name);
  if (stage.block != kGap) out += ", " + number("block", stage.block);
  out += ", " + number("forward_us", stage.forward_us) + ", " +
         number("backward_us", stage.backward_us);
  for (std::size_t a = 0; a < kActions; ++a) {
    if (!stage.options[a].allowed) continue;
    out += ", " + json_quote(kMemoryActionNames[a]) + ": " + option_text(stage.options[a]);
  }
  return out + "}";
}

std::string profile_text(const RankProfile& profile) {
  const MemoryProblem& problem = profile.problem;
  std::string out = "  {\"ranks\": [";
  for (std::size_t i = 0; i < profile.ranks.size(); ++i)
    out += (i > 0 ? ", " : "") + std::to_string(profile.ranks[i]);
  out += "], " + number("base_bytes", problem.base_bytes) + ", " +
         number("limit_bytes", profile.limit_bytes) + ", " +
         number("copy_bytes_per_ms", problem.copy_bytes_per_ms);
  if (problem.tier_bytes) out += ", " + number("tier_bytes", *problem.tier_bytes);
  if (problem.most_recomputed) out += ", " + number("most_recomputed", *problem.most_recomputed);
  out += ", \"stages\": [\n";
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const bool is_last = i + 1 == problem.stages.size();
    out +=
        "    " + stage_text(problem.stages[i], profile.stage_names[i]) + (is_last ? "]}" : ",\n");
  }
  return out;
}

std::optional<std::int64_t> cap(JsonFields& fields, const Json& json, std::string_view name,
                                const std::string& where) {
  if (!json.find(name)) return std::nullopt;
  return fields.integer(json, name, where);
}

StageOption option_of(JsonFields& fields, const Json& json, const std::string& where) {
  StageOption out;
  out.allowed = true;
  for (const Field& field : kFields) out.*field.value = fields.integer(json, field.name, where);
  return out;
}

std::int32_t small(JsonFields& fields, const Json& json, const std::string& where,
                   std::int64_t most) {
  const std::int64_t value = fields.integer(json, where);
  if (value > most)
    fields.fail(where + ": expected 0 to " + std::to_string(most) + ", found " +
                std::to_string(value));
  return fields.ok() ? static_cast<std::int32_t>(value) : 0;
}

Stage stage_of(JsonFields& fields, const Json& json, const std::string& where) {
  Stage stage;
  stage.forward_us = fields.integer(json, "forward_us", where);
  stage.backward_us = fields.integer(json, "backward_us", where);
  if (const Json* block = json.find("block"))
    stage.block = small(fields, *block, where + ": block", kMaxBlocks - 1);
  for (std::size_t a = 0; a < kActions; ++a) {
    const Json* option = json.find(kMemoryActionNames[a]);
    if (!option) continue;
    stage.options[a] =
        option_of(fields, *option, where + ": " + std::string(kMemoryActionNames[a]));
  }
  return stage;
}

RankProfile profile_of(JsonFields& fields, const Json& json, const std::string& where) {
  RankProfile out;
  for (const Json& rank : fields.items(json, "ranks", 0, kMaxRanks, where))
    out.ranks.push_back(small(fields, rank, where + ": ranks", kMaxRanks - 1));
  MemoryProblem& problem = out.problem;
  problem.base_bytes = fields.integer(json, "base_bytes", where);
  out.limit_bytes = cap(fields, json, "limit_bytes", where).value_or(0);
  problem.copy_bytes_per_ms = fields.integer(json, "copy_bytes_per_ms", where);
  problem.tier_bytes = cap(fields, json, "tier_bytes", where);
  if (const Json* most = json.find("most_recomputed"))
    problem.most_recomputed = small(fields, *most, where + ": most_recomputed", kMaxBlocks);
  const std::vector<Json>& stages = fields.items(json, "stages", 1, kMaxStages, where);
  for (std::size_t i = 0; i < stages.size() && fields.ok(); ++i) {
    const std::string stage = where + ": stage " + std::to_string(i);
    out.stage_names.push_back(fields.text(stages[i], "name", stage));
    if (fields.ok()) problem.stages.push_back(stage_of(fields, stages[i], stage));
  }
  if (!fields.ok()) return out;
  if (const Status status = validate(problem); !status.ok())
    fields.fail(where + ": " + status.message());
  return out;
}

}  // namespace

std::string to_json(const MemoryProfile& profile) {
  std::string out = "{\"format\": " + json_quote(kProfileFormat) + ", " +
                    number("version", kProfileVersion) + ", \"profiles\": [\n";
  for (std::size_t i = 0; i < profile.profiles.size(); ++i)
    out += (i > 0 ? ",\n" : "") + profile_text(profile.profiles[i]);
  return out + "\n]}\n";
}

Result<MemoryProfile> read_memory_profile(std::string_view text) {
  const Result<Json> json = parse_json(text, kMaxPlanFileBytes);
  if (!json.ok()) return json.status();
  JsonFields fields;
  const std::string format = fields.text(*json, "format", "memory profile");
  if (fields.ok() && format != kProfileFormat)
    fields.fail("memory profile: expected the format '" + std::string(kProfileFormat) +
                "', found another");
  const std::int64_t version = fields.integer(*json, "version", "memory profile");
  if (fields.ok() && version != kProfileVersion)
    fields.fail("memory profile: expected version " + std::to_string(kProfileVersion) + ", found " +
                std::to_string(version) + ": written by another release");
  MemoryProfile out;
  const auto& all = fields.items(*json, "profiles", 1, kMaxMemoryModels, "memory profile");
  for (std::size_t i = 0; i < all.size() && fields.ok(); ++i)
    out.profiles.push_back(profile_of(fields, all[i], "profile " + std::to_string(i)));
  if (!fields.ok()) return fields.status();
  return out;
}

}  // namespace cox::planner
