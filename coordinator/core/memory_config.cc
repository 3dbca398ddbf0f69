#include "coordinator/core/memory_config.h"

#include <algorithm>

namespace cox {
namespace {

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

std::string text_of(const BlockRule& rule) {
  return rule.pattern + "=" + std::string(to_string(rule.action));
}

}  // namespace

bool wants_memory_plan(const MemoryConfig& config) {
  return config.budget.kind != BudgetKind::none || !config.budget_of_rank.empty() ||
         !config.force.empty();
}

bool fits_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last one seen ...
  std::size_t tried = 0;                      // ... and where its text ends for now
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

const BlockRule* forcing_rule(const MemoryConfig& config, std::string_view block) {
  const auto last =
      std::find_if(config.force.rbegin(), config.force.rend(),
                   [block](const BlockRule& rule) { return fits_pattern(rule.pattern, block); });
  return last == config.force.rend() ? nullptr : &*last;
}

ActionSet allowed_actions(const MemoryConfig& config, std::string_view block) {
  if (const BlockRule* rule = forcing_rule(config, block)) return only(rule->action);
  ActionSet set = kEveryAction;
  for (const MemoryAction action :
       {MemoryAction::recompute, MemoryAction::offload, MemoryAction::tile}) {
    const bool forbidden =
        std::any_of(config.forbid.begin(), config.forbid.end(), [&](const BlockRule& rule) {
          return rule.action == action && fits_pattern(rule.pattern, block);
        });
    if (forbidden || !is_on(config, action)) set = without(set, action);
  }
  return set;
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

}  // namespace cox
