#include "coordinator/core/settings/memory.h"

#include <algorithm>
#include <array>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/units.h"

namespace cox {
namespace {

using namespace settings;

constexpr std::array<std::string_view, 3> kBudgetNames = {"conservative", "balanced", "aggressive"};
constexpr auto kFirstNamed = static_cast<std::size_t>(BudgetKind::conservative);

Status no_budget(std::string_view found) {
  return invalid_argument("expected bytes (6GiB), a fraction of the limit (0.01 .. 1) or one of " +
                          join(kBudgetNames) + ", found '" + std::string(found) + "'");
}

using Budgets = std::map<std::int32_t, MemoryBudget>;

Result<Budgets> parse_budgets(std::string_view text) {
  Budgets budgets;
  const Status status = for_each_part(text, [&](std::string_view part) {
    const auto pair = parse_pair(part, ':', "RANK:BUDGET");
    if (!pair.ok()) return pair.status();
    const auto rank = parse_integer(pair->left, {0, kMaxRanks - 1});
    if (!rank.ok()) return rank.status();
    const auto budget = parse_budget(pair->right);
    if (!budget.ok()) return budget.status();
    if (budget->kind == BudgetKind::none) return no_budget(pair->right);
    if (!budgets.emplace(static_cast<std::int32_t>(*rank), *budget).second)
      return invalid_argument("rank " + std::to_string(*rank) + " has two budgets");
    return ok_status();
  });
  if (!status.ok()) return status;
  return budgets;
}

std::string format_budgets(const Budgets& budgets) {
  return format_list(budgets, [](const auto& entry) {
    return std::to_string(entry.first) + ":" + format_budget(entry.second);
  });
}

std::string text_of(const BlockRule& rule) {
  return rule.pattern + "=" + std::string(to_string(rule.action));
}

Result<std::vector<BlockRule>> parse_rules(std::string_view text) {
  std::vector<BlockRule> rules;
  const Status status = for_each_part(text, [&](std::string_view part) {
    const auto pair = parse_pair(part, '=', "BLOCK=ACTION");
    if (!pair.ok()) return pair.status();
    if (pair->left.empty()) return invalid_argument("expected BLOCK=ACTION, found no block");
    const auto action = parse_name(pair->right, kMemoryActionNames);
    if (action.ok()) rules.push_back({std::string(pair->left), static_cast<MemoryAction>(*action)});
    return action.status();
  });
  if (!status.ok()) return status;
  return rules;
}

Setting<MemoryConfig> rules(std::vector<BlockRule> MemoryConfig::*field, SettingName name) {
  return parsed(field, std::move(name), "rules", "BLOCK=keep|recompute|offload|tile,...",
                parse_rules, [](const auto& all) { return format_list(all, text_of); });
}

using MaybeBytes = std::optional<std::int64_t>;

Result<MaybeBytes> parse_maybe_bytes(std::string_view text) {
  if (text.empty()) return MaybeBytes();
  const Result<std::int64_t> bytes = parse_bytes(text);
  if (!bytes.ok()) return bytes.status();
  return MaybeBytes(*bytes);
}

std::string format_maybe_bytes(const MaybeBytes& bytes) {
  return bytes ? format_bytes(*bytes) : std::string();
}

bool is_on(const MemoryConfig& config, MemoryAction action) {
  switch (action) {
    case MemoryAction::recompute:
      return config.recompute;
    case MemoryAction::offload:
      return config.offload;
    case MemoryAction::tile:
      return config.tile;
    case MemoryAction::keep:
      break;
  }
  return true;
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
      parsed(&C::budget_of_rank, {"budget_of_rank", "", "budgets of single ranks instead of it"},
             "budgets", "RANK:BUDGET,...", parse_budgets, format_budgets),
      parsed(&C::inject_headroom,
             {"inject_headroom", "bytes",
              "for tests: pretend that so much is free above a rank's first peak"},
             "bytes", "0 .. 1024TiB, or empty", parse_maybe_bytes, format_maybe_bytes),
      integer(&C::retry_rounds, {"retry_rounds", "rounds", "a failed action rests for that long"},
              {1, 1000000}),
      rules(&C::force, {"force", "", "actions that blocks must have; * is any text"}),
      rules(&C::forbid, {"forbid", "", "actions that blocks must not have; * is any text"}),
      flag(&C::recompute, {"recompute", "", "plans may recompute blocks"}),
      flag(&C::offload, {"offload", "", "plans may offload what blocks keep"}),
      flag(&C::tile, {"tile", "", "plans may tile blocks"}),
      number(&C::most_recomputed,
             {"most_recomputed", "ratio", "largest part of blocks to recompute"}, {0, 1}),
      text(&C::tier_directory,
           {"tier_directory", "", "offloaded tensors go there; empty = nowhere", Scope::set_alike}),
      bytes(&C::tier_bytes, {"tier_bytes", "bytes", "most offloaded by a node; 0 = no cap"}),
      bytes(&C::smallest_bytes, {"smallest_bytes", "bytes", "smaller tensors are never offloaded"}),
  };
}

Status validate(const MemoryConfig& config) {
  for (const BlockRule& rule : config.force) {
    if (!is_on(config, rule.action)) {
      return invalid_argument("memory.force has " + text_of(rule) + ", but memory." +
                              std::string(to_string(rule.action)) + " is off; change one of both");
    }
    if (std::find(config.forbid.begin(), config.forbid.end(), rule) != config.forbid.end()) {
      return invalid_argument("memory.force and memory.forbid both have " + text_of(rule) +
                              "; take it out of one of them");
    }
  }
  for (const BlockRule& rule : config.forbid) {
    if (rule.action != MemoryAction::keep) continue;
    return invalid_argument("memory.forbid has " + text_of(rule) +
                            ", but keep is always possible; force another action instead");
  }
  return ok_status();
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
  if (const BlockRule* rule = forcing_rule(config, block)) return only(rule->action);
  ActionSet set = kEveryAction;
  for (const MemoryAction action :
       {MemoryAction::recompute, MemoryAction::offload, MemoryAction::tile}) {
    if (!is_on(config, action)) set = without(set, action);
  }
  for (const BlockRule& rule : config.forbid) {
    if (rule.action != MemoryAction::keep && fits_pattern(rule.pattern, block))
      set = without(set, rule.action);
  }
  return set;
}

const BlockRule* forcing_rule(const MemoryConfig& config, std::string_view block) {
  return last_fitting(config.force, block);
}

}  // namespace cox
