#include "coordinator/core/settings/memory.h"

#include <algorithm>
#include <array>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/units.h"
#include "coordinator/core/words.h"

namespace cox {
namespace {

using namespace settings;

constexpr std::array<std::string_view, 3> kBudgetNames = {"conservative", "balanced", "aggressive"};
constexpr auto kFirstNamed = static_cast<std::size_t>(BudgetKind::conservative);

Status no_budget(std::string_view found) {
  return invalid_argument("expected bytes (6GiB), a fraction of the limit (0.01 .. 1) or one of ",
                          join(kBudgetNames), ", found '", shown(found), "'");
}

Result<MemoryBudget> parse_rank_budget(std::string_view text) {
  Result<MemoryBudget> budget = parse_budget(text);
  if (budget.ok() && budget->kind == BudgetKind::none) return no_budget(text);
  return budget;
}

Result<std::optional<std::int64_t>> parse_maybe_bytes(std::string_view text) {
  if (text.empty()) return std::optional<std::int64_t>();
  const Result<std::int64_t> bytes = parse_bytes(text);
  if (!bytes.ok()) return bytes.status();
  return std::optional(*bytes);
}

Setting<MemoryConfig> actions(std::vector<ActionRule> MemoryConfig::*field, SettingName name) {
  return rules(field, std::move(name), "rules", "BLOCK=ACTION", kMemoryKindNames);
}

bool is_on(const MemoryConfig& config, MemoryAction action) {
  switch (kind_of(action)) {
    case MemoryAction::recompute:
      return config.recompute;
    case MemoryAction::offload:
      return config.offload;
    case MemoryAction::tile:
      return config.tile;
    default:
      return true;  // keep
  }
}

}  // namespace

std::vector<Setting<MemoryConfig>> memory_settings() {
  using C = MemoryConfig;
  return {
      auto_mode(&C::mode, {"mode", "", "plans activation memory; auto = on with a budget"},
                wants_memory_plan),
      parsed(&C::budget, {"budget", "", "most memory of a rank"}, "budget",
             "conservative|balanced|aggressive|fraction of the limit|bytes|empty", parse_budget,
             format_budget),
      by_rank(&C::budget_of_rank,
              {"budget_of_rank", "", "budgets of single ranks, in place of memory.budget"},
              "budgets", "RANK:BUDGET", "RANK:BUDGET,...", parse_rank_budget, format_budget),
      parsed(&C::inject_headroom,
             {"inject_headroom", "bytes",
              "for tests: pretend that so much is free above a rank's first peak"},
             "bytes", "0 .. 1024TiB, or empty", parse_maybe_bytes,
             [](const auto& bytes) { return bytes ? format_bytes(*bytes) : std::string(); }),
      integer(&C::retry_rounds,
              {"retry_rounds", "rounds", "a failed action is not planned for that long"},
              {1, 1000000}),
      actions(&C::force, {"force", "", "actions that blocks must have; * is any text"}),
      actions(&C::forbid, {"forbid", "", "actions that blocks must not have; * is any text"}),
      flag(&C::recompute, {"recompute", "", "plans may recompute blocks"}),
      flag(&C::offload, {"offload", "", "plans may offload what blocks keep"}),
      flag(&C::tile, {"tile", "", "plans may tile blocks"}),
      number(&C::most_recomputed,
             {"most_recomputed", "ratio", "largest part of blocks to recompute"}, {0, 1}),
      integer(&C::verify_steps,
              {"verify_steps", "steps",
               "recomputed and reloaded tensors are compared with the originals, bit for bit, that "
               "often; 0 = never"},
              {0, 1000000000}),
      flag(&C::verify_offload,
           {"verify_offload", "", "bytes that come back from memory.tier_directory are checked"}),
      path(&C::tier_directory,
           {"tier_directory", "", "offloaded tensors go there; empty = nowhere", Scope::set_alike}),
      bytes(&C::tier_bytes, {"tier_bytes", "bytes", "most offloaded by a node; 0 = no cap"}),
      bytes(&C::smallest_bytes, {"smallest_bytes", "bytes", "smaller tensors are never offloaded"}),
  };
}

Status validate(const MemoryConfig& config) {
  for (const ActionRule& rule : config.force) {
    if (is_on(config, rule.value)) continue;
    return invalid_argument("memory.force has ", rule.text(), ", but memory.", rule.value,
                            " is off; change one of the two settings");
  }
  return check_rules("memory", config.force, config.forbid, MemoryAction::keep, "action");
}

Result<MemoryBudget> parse_budget(std::string_view text) {
  MemoryBudget budget;
  if (text.empty()) return budget;
  if (const auto name = parse_name(text, kBudgetNames); name.ok()) {
    budget.kind = static_cast<BudgetKind>(kFirstNamed + *name);
    return budget;
  }
  if (const auto fraction = parse_number(text, {0.01, 1}); fraction.ok()) {
    budget.kind = BudgetKind::fraction;
    budget.fraction = *fraction;
    return budget;
  }
  const Result<std::int64_t> bytes = parse_bytes(text);
  if (!bytes.ok() || *bytes < 2) return no_budget(text);
  budget.kind = BudgetKind::bytes;
  budget.bytes = *bytes;
  return budget;
}

std::string format_budget(const MemoryBudget& budget) {
  switch (budget.kind) {
    case BudgetKind::none:
      return {};
    case BudgetKind::bytes:
      return format_bytes(budget.bytes);
    case BudgetKind::fraction:
      return format(budget.fraction);
    default:
      return std::string(kBudgetNames[static_cast<std::size_t>(budget.kind) - kFirstNamed]);
  }
}

bool wants_memory_plan(const MemoryConfig& config) {
  return config.budget.kind != BudgetKind::none || !config.budget_of_rank.empty() ||
         !config.force.empty();
}

ActionSet allowed_actions(const MemoryConfig& config, std::string_view block) {
  if (const ActionRule* rule = forcing_rule(config, block)) return every(rule->value);
  ActionSet set = kEveryAction;
  for (const MemoryAction action :
       {MemoryAction::recompute, MemoryAction::offload, MemoryAction::tile}) {
    if (!is_on(config, action)) set = without_kind(set, action);
  }
  for (const ActionRule& rule : config.forbid) {
    if (rule.value != MemoryAction::keep && fits_pattern(rule.pattern, block))
      set = without_kind(set, rule.value);
  }
  return set;
}

const ActionRule* forcing_rule(const MemoryConfig& config, std::string_view block) {
  return last_fitting(config.force, block);
}

}  // namespace cox
