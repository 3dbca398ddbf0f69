// The topic Activation memory: the effect of the newest plan on every rank's memory. Shows
// predictions, from measurements before the first round, beside later measurements. The views are a
// MemoryView, a MemoryHeadroom, and the HeldBytes that the session sets. The MemoryView is rebuilt
// only when plan, facts or budgets change. 0 bytes mean "not known", or for budgets "not limited".
// Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "metrics/topic.h"

namespace cox::metrics {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// HeldBytes are the bytes that a rank holds under every plan: the whole model if ranks are
// replicas, or this rank's part if a node holds the model once. 0 = not known.
struct HeldBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;  // at the end of a backward pass that reaches every parameter
  std::int64_t optimizer = 0;  // state of the optimizer
  std::int64_t buckets = 0;    // for averaging gradients
  friend bool operator==(const HeldBytes&, const HeldBytes&) = default;
};

struct RankMemoryView {
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t keep_all_peak_bytes = 0;  // with every block kept
  std::int64_t budget_bytes = 0;
  double added_ratio = kUnknown;  // added time over the time of a step with every block kept
  friend bool operator==(const RankMemoryView&, const RankMemoryView&) = default;
};

struct MemoryView {
  std::vector<RankMemoryView> ranks;  // one a rank

  // Each number is the maximum over the ranks, but the budget is the minimum.
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t keep_all_peak_bytes = 0;
  std::int64_t saved_bytes = 0;  // keep_all minus predicted, of one rank
  std::int64_t budget_bytes = 0;
  double added_ratio = kUnknown;
  std::int64_t resident_bytes = 0;         // all through the step: parameters, optimizer, buckets
  std::int64_t keep_all_block_bytes = 0;   // what all blocks hold for backward when kept
  std::int64_t plan_kept_block_bytes = 0;  // held for backward by the blocks that the plan keeps
};

// Returns null if no costs were measured, or the plan has no profiles yet.
std::shared_ptr<const MemoryView> memory_view(const JobFacts& job, const Plan& plan,
                                              std::span<const std::int64_t> budget_bytes);

// Returns whether `view` was made with these budgets.
bool has_budgets(const MemoryView& view, std::span<const std::int64_t> budget_bytes);

// MemoryHeadroom compares budgets with the peaks of one round. A machine with little free memory
// has a limit below the budget, and the limit counts instead. Only ranks with a budget and a peak
// count.
struct MemoryHeadroom {
  RankId tightest{-1};           // the lowest such rank on ties; -1 = no rank counts
  std::int64_t least_bytes = 0;  // of the tightest rank; negative = over the budget or limit
  std::int32_t over_budget = 0;  // ranks
};
MemoryHeadroom memory_headroom(const MemoryView& view, const StepSignals& signals);

// Adds the field `memory`: null if memory is not planned.
void put_memory(io::JsonWriter& json, const Snapshot& snapshot);

Topic memory_topic();

}  // namespace cox::metrics
