#include "coordinator/core/memory_values.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "coordinator/core/config_values.h"

namespace cox::config_values {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Unit, 5> kUnits = {{{"TiB", std::int64_t{1} << 40},
                                         {"GiB", std::int64_t{1} << 30},
                                         {"MiB", std::int64_t{1} << 20},
                                         {"KiB", std::int64_t{1} << 10},
                                         {"B", 1}}};
constexpr std::array<std::string_view, 3> kBudgetNames = {"conservative", "balanced", "aggressive"};
constexpr NumberRange kFractions{0.01, 1};

Status no_bytes(std::string_view found) {
  return invalid_argument("expected bytes up to 1024TiB, such as 6GiB, 512MiB or 65536, found '" +
                          std::string(found) + "'");
}

Status no_budget(std::string_view found) {
  return invalid_argument("expected bytes (6GiB), a fraction of the limit (0.01 .. 1) or one of " +
                          join(kBudgetNames) + ", found '" + std::string(found) + "'");
}

// Calls `take` with each part between commas.
template <class Take>
Status for_each_part(std::string_view text, Take take) {
  const Result<std::vector<std::string_view>> parts = parse_parts(text);
  if (!parts.ok()) return parts.status();
  for (const std::string_view part : *parts) {
    if (Status status = take(part); !status.ok()) return status;
  }
  return ok_status();
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  Unit unit = kUnits.back();
  std::string_view number = text;
  for (const Unit& known : kUnits) {
    if (!text.ends_with(known.name)) continue;
    unit = known;
    number = text.substr(0, text.size() - known.name.size());
    break;
  }
  const Result<double> value = parse_number(number, {0, static_cast<double>(kMaxBytes)});
  if (!value.ok()) return no_bytes(text);
  const double bytes = *value * static_cast<double>(unit.bytes);
  if (!(bytes <= static_cast<double>(kMaxBytes)) || bytes != std::floor(bytes)) {
    return no_bytes(text);
  }
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes == 0 || bytes % unit.bytes != 0) continue;
    return std::to_string(bytes / unit.bytes) + (unit.bytes == 1 ? "" : std::string(unit.name));
  }
  return "0";
}

Result<MemoryBudget> parse_budget(std::string_view text) {
  MemoryBudget budget;
  if (text.empty()) return budget;
  if (const auto name = parse_name(text, kBudgetNames); name.ok()) {
    budget.kind =
        static_cast<BudgetKind>(static_cast<std::size_t>(BudgetKind::conservative) + *name);
    return budget;
  }
  if (const auto fraction = parse_number(text, kFractions); fraction.ok()) {
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

std::string format(const MemoryBudget& budget) {
  switch (budget.kind) {
    case BudgetKind::none:
      return {};
    case BudgetKind::bytes:
      return format_bytes(budget.bytes);
    case BudgetKind::fraction:
      return format(budget.fraction);
    default:
      return std::string(kBudgetNames[static_cast<std::size_t>(budget.kind) -
                                      static_cast<std::size_t>(BudgetKind::conservative)]);
  }
}

Result<std::map<std::int32_t, MemoryBudget>> parse_budgets(std::string_view text) {
  std::map<std::int32_t, MemoryBudget> budgets;
  const Status status = for_each_part(text, [&](std::string_view part) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      return invalid_argument("expected RANK:BUDGET, found '" + std::string(part) + "'");
    }
    const auto rank = parse_integer(trim(part.substr(0, colon)), {0, kMaxBudgetRank});
    if (!rank.ok()) return rank.status();
    const std::string_view what = trim(part.substr(colon + 1));
    const auto budget = parse_budget(what);
    if (!budget.ok()) return budget.status();
    if (budget->kind == BudgetKind::none) return no_budget(what);
    if (!budgets.emplace(static_cast<std::int32_t>(*rank), *budget).second) {
      return invalid_argument("rank " + std::to_string(*rank) + " has two budgets");
    }
    return ok_status();
  });
  if (!status.ok()) return status;
  return budgets;
}

std::string format(const std::map<std::int32_t, MemoryBudget>& budgets) {
  std::string out;
  for (const auto& [rank, budget] : budgets) {
    out += (out.empty() ? "" : ",") + std::to_string(rank) + ":" + format(budget);
  }
  return out;
}

Result<std::vector<BlockRule>> parse_rules(std::string_view text) {
  std::vector<BlockRule> rules;
  const Status status = for_each_part(text, [&](std::string_view part) {
    const std::size_t equals = part.rfind('=');
    if (equals == std::string_view::npos || trim(part.substr(0, equals)).empty()) {
      return invalid_argument("expected BLOCK=ACTION, found '" + std::string(part) + "'");
    }
    const auto action = parse_name(trim(part.substr(equals + 1)), kMemoryActionNames);
    if (!action.ok()) return action.status();
    rules.push_back(
        {std::string(trim(part.substr(0, equals))), static_cast<MemoryAction>(*action)});
    return ok_status();
  });
  if (!status.ok()) return status;
  return rules;
}

std::string format(const std::vector<BlockRule>& rules) {
  std::string out;
  for (const BlockRule& rule : rules) {
    out += (out.empty() ? "" : ",") + rule.pattern + "=" + std::string(to_string(rule.action));
  }
  return out;
}

}  // namespace cox::config_values
