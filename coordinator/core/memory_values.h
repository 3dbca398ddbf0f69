// How the values of `memory.*` are read from text and written back, both ways exact. Pure
// functions; errors are invalid_argument.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/memory_config.h"
#include "coordinator/core/status.h"

namespace cox::config_values {

inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
inline constexpr std::int32_t kMaxBudgetRank = (1 << 20) - 1;

// "6GiB", "1.5MiB", "4096": whole bytes up to 1024TiB. Units: B, KiB, MiB, GiB, TiB.
Result<std::int64_t> parse_bytes(std::string_view text);
std::string format_bytes(std::int64_t bytes);  // in the largest unit that divides it

// Bytes, a fraction from 0.01 to 1 (no unit), conservative, balanced, aggressive, or nothing.
Result<MemoryBudget> parse_budget(std::string_view text);
std::string format(const MemoryBudget& budget);

// "0:6GiB,2:0.5": ranks and their budgets.
Result<std::map<std::int32_t, MemoryBudget>> parse_budgets(std::string_view text);
std::string format(const std::map<std::int32_t, MemoryBudget>& budgets);

// "encoder.*=recompute,head=offload".
Result<std::vector<BlockRule>> parse_rules(std::string_view text);
std::string format(const std::vector<BlockRule>& rules);

}  // namespace cox::config_values
