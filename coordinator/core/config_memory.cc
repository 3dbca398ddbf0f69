#include <optional>
#include <string>

#include "coordinator/core/config_rows.h"
#include "coordinator/core/memory_values.h"

namespace cox::config_rows {
namespace {

constexpr std::string_view kBudgets =
    "conservative|balanced|aggressive|fraction of the limit|bytes|empty";

Result<std::optional<std::int64_t>> parse_if_any(std::string_view text) {
  std::optional<std::int64_t> bytes;
  if (text.empty()) return bytes;
  const Result<std::int64_t> found = values::parse_bytes(text);
  if (!found.ok()) return found.status();
  bytes = *found;
  return bytes;
}

std::string format_if_any(const std::optional<std::int64_t>& bytes) {
  return bytes ? values::format_bytes(*bytes) : std::string();
}

std::string format_budget(const MemoryBudget& budget) {
  return values::format(budget);
}

std::string format_budgets(const std::map<std::int32_t, MemoryBudget>& budgets) {
  return values::format(budgets);
}

std::string format_rules(const std::vector<BlockRule>& rules) {
  return values::format(rules);
}

template <class Field>
ConfigRow bytes(const Words& words, Field field) {
  return parsed(words, "bytes", "0 .. 1024TiB", values::parse_bytes, values::format_bytes, field);
}

template <class Field>
ConfigRow rules(const Words& words, Field field) {
  return parsed(words, "rules", "BLOCK=keep|recompute|offload|tile,...", values::parse_rules,
                format_rules, field);
}

void add_budgets(std::vector<ConfigRow>& t) {
  t.push_back(auto_mode({"memory.mode", "", "plans activation memory; auto = on with a budget"},
                        COX_FIELD(memory.mode)));
  t.push_back(parsed({"memory.budget", "", "most memory of a rank"}, "budget",
                     std::string(kBudgets), values::parse_budget, format_budget,
                     COX_FIELD(memory.budget)));
  t.push_back(parsed({"memory.budget_of_rank", "", "budgets of single ranks instead of it"},
                     "budgets", "RANK:BUDGET,...", values::parse_budgets, format_budgets,
                     COX_FIELD(memory.budget_of_rank)));
  t.push_back(parsed({"memory.inject_headroom", "bytes",
                      "for tests: pretend that so much is free above a rank's first peak"},
                     "bytes", "0 .. 1024TiB, or empty", parse_if_any, format_if_any,
                     COX_FIELD(memory.inject_headroom)));
  t.push_back(integer({"memory.retry_rounds", "rounds", "a failed action rests for that long"},
                      {1, 1000000}, COX_FIELD(memory.retry_rounds)));
}

void add_actions(std::vector<ConfigRow>& t) {
  t.push_back(rules({"memory.force", "", "actions that blocks must have; * is any text"},
                    COX_FIELD(memory.force)));
  t.push_back(rules({"memory.forbid", "", "actions that blocks must not have; * is any text"},
                    COX_FIELD(memory.forbid)));
  t.push_back(
      flag({"memory.recompute", "", "plans may recompute blocks"}, COX_FIELD(memory.recompute)));
  t.push_back(flag({"memory.offload", "", "plans may offload what blocks keep"},
                   COX_FIELD(memory.offload)));
  t.push_back(flag({"memory.tile", "", "plans may tile blocks"}, COX_FIELD(memory.tile)));
  t.push_back(number({"memory.most_recomputed", "ratio", "largest part of blocks to recompute"},
                     {0, 1}, COX_FIELD(memory.most_recomputed)));
}

}  // namespace

void add_memory(std::vector<ConfigRow>& t) {
  add_budgets(t);
  add_actions(t);
  t.push_back(words_of({"memory.tier_directory", "", "offloaded tensors go there; empty = nowhere",
                        Scope::set_alike},
                       COX_FIELD(memory.tier_directory)));
  t.push_back(bytes({"memory.tier_bytes", "bytes", "most offloaded by a node; 0 = no cap"},
                    COX_FIELD(memory.tier_bytes)));
  t.push_back(bytes({"memory.smallest_bytes", "bytes", "smaller tensors are never offloaded"},
                    COX_FIELD(memory.smallest_bytes)));
}

}  // namespace cox::config_rows
