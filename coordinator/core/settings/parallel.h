// The settings of data parallel training: `reduction.*` and `shard.*` (read by the SDK before the
// first step), `shares.*` and `accumulation.*` (read by the policies of these names in every
// round), and `force.*` (plans that a user dictates). Part of Config; see settings.h for the rows.
// Plain values, pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox {

struct ReductionConfig {
  // Weights do not depend on world size, shares or order of arrival. Needs a fixed micro-batch.
  bool reproducible = false;
  // The size of a gradient bucket; 0 = rank 0 tries some sizes and keeps the best.
  std::int64_t bucket_bytes = 0;
  bool shared_memory = true;  // false: MPI also between ranks of a node
  // Steps between comparisons of a hash of the ranks' weights; 0 = never.
  std::uint32_t verify_steps = 100;
};
std::vector<Setting<ReductionConfig>> reduction_settings();

struct SharesConfig {
  PolicyMode mode = PolicyMode::off;
  std::map<std::int32_t, double> hint;  // relative speed by rank, others 1: the first shares
  std::uint64_t min_samples = 1;        // of every rank, so that its speed stays known
  std::map<std::int32_t, std::uint64_t> max_samples;  // by rank; others have no cap
  std::uint32_t settle_rounds = 8;    // before the first shares, and after each change
  double smallest_gain_ratio = 0.03;  // of the step's time, for a change
};
std::vector<Setting<SharesConfig>> shares_settings();

// AccumulationConfig chooses the samples of a step. The slowest rank computes `anchor`
// micro-batches a step, and faster ranks compute more. `anchor` grows until synchronising takes
// less than `target_ratio` of a step's time.
struct AccumulationConfig {
  PolicyMode mode = PolicyMode::off;
  double target_ratio = 0.1;  // of synchronising to a step's time
  std::uint32_t min_anchor = 1;
  std::uint32_t max_anchor = 64;
  std::uint32_t settle_rounds = 8;  // before each change
};
std::vector<Setting<AccumulationConfig>> accumulation_settings();

enum class ShardMode : std::uint8_t { off = 0, state = 1 };

// ShardConfig says which memory the ranks of a node share or divide.
struct ShardConfig {
  ShardMode mode = ShardMode::off;  // state: divides the optimizer's state, shares the rest
  std::uint32_t grain = 4096;       // elements: borders of slices are multiples
};
std::vector<Setting<ShardConfig>> shard_settings();

struct OverrideConfig {
  std::vector<std::uint32_t> shares;  // forced, one per rank; empty = policy or even
};
std::vector<Setting<OverrideConfig>> force_settings();

// Returns invalid_argument for settings that contradict each other.
Status validate(const SharesConfig& config);
Status validate(const AccumulationConfig& config);
Status validate(const OverrideConfig& config);

}  // namespace cox
