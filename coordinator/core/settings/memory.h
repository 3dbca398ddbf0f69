// The settings `memory.*`, and their meaning for a block. Read twice: before the first round, when
// fronts are made (SDK: actions allowed for each block, caps of the tier), and by policy `memory`
// in every round (budgets). Part of Config; see settings.h for the rows. Plain values, pure
// functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox {

// The words conservative, balanced and aggressive mean 0.90, 0.75 and 0.50 of 85 % of a rank's
// limit. `aggressive` plans even if everything fits. The other two plan only if keeping everything
// exceeds the 85 %.
enum class BudgetKind : std::uint8_t { none, bytes, fraction, conservative, balanced, aggressive };

struct MemoryBudget {
  BudgetKind kind = BudgetKind::none;
  std::int64_t bytes = 0;  // of kind bytes, >= 2
  double fraction = 0;     // of kind fraction: of a rank's limit, in (0, 1]
  friend bool operator==(const MemoryBudget&, const MemoryBudget&) = default;
};

using ActionRule = BlockRule<MemoryAction>;

struct MemoryConfig {
  // Read by policy `memory`.
  std::optional<PolicyMode> mode;  // empty = on if a budget or a forced action is set, else off
  MemoryBudget budget;             // of every rank
  std::map<std::int32_t, MemoryBudget> budget_of_rank;  // instead of `budget`
  std::optional<std::int64_t> inject_headroom;  // tests: bytes free above a rank's first peak
  std::uint32_t retry_rounds = 50;              // rounds for which a failed action rests
  // Read by the SDK and by policy `memory` (allowed_actions).
  std::vector<ActionRule> force;   // the last one that fits a block counts
  std::vector<ActionRule> forbid;  // never keep
  bool recompute = true;
  bool offload = true;
  bool tile = true;
  // Read by the SDK only: when the fronts are made and the tier is opened.
  std::string tier_directory;           // folder for offloaded tensors on the CPU; empty = none
  std::int64_t tier_bytes = 0;          // most bytes offloaded by all ranks of a node; 0 = no cap
  std::int64_t smallest_bytes = 65536;  // smaller tensors are never offloaded
  double most_recomputed = 1;           // largest part of the blocks that may be recomputed
  bool verify_offload = true;           // compares each byte that is read back from a folder
  std::uint32_t verify_steps = 1000;    // steps between comparisons of blocks not kept; 0 = never
};
std::vector<Setting<MemoryConfig>> memory_settings();

// Returns invalid_argument for settings that contradict each other.
Status validate(const MemoryConfig& config);

// Parses bytes, a fraction from 0.01 to 1 (no unit), conservative, balanced, aggressive, or
// nothing.
Result<MemoryBudget> parse_budget(std::string_view text);
std::string format_budget(const MemoryBudget& budget);

// Returns whether activation memory is planned while memory.mode is not set.
bool wants_memory_plan(const MemoryConfig& config);

// Returns the actions allowed for a block: a forced one alone, else keep and all that are neither
// switched off nor forbidden. In rules `recompute` includes all its levels: if forced, the block is
// recomputed at any level or in full; if forbidden, at none.
ActionSet allowed_actions(const MemoryConfig& config, std::string_view block);

// Returns the rule that forces an action on the block; null = none. Owned by `config`.
const ActionRule* forcing_rule(const MemoryConfig& config, std::string_view block);

}  // namespace cox
