// Which block a step's trouble began in. The rule, over the calls of one rank in the order of time:
// - forward: the first call (by its end, so the innermost of nested ones) whose inputs are all
//   finite and some result is not;
// - backward: the first call whose incoming gradients are all finite and an outgoing one, or a
//   gradient of its block's own parameters, or one that comes to a call inside, is not; of nested
//   calls the innermost such. First is when a bad gradient left it; calls that passed none on, but
//   whose parameters have one, come after those. A tensor that several blocks take has one
//   gradient, the sum of theirs: of these it is the block whose parameters have bad gradients too,
//   else the one that was called first;
// - of the two, what happened first; where neither exists it was outside of all blocks (the loss,
//   code between blocks, the data), with the block next to it.
// Only a step in which something came of it is blamed on anybody: a non-finite gradient or loss.
// A parameter's gradient sums over all calls, so it speaks against a block only if all incoming
// gradients of all its calls are finite. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sdk/src/precision/health_records.h"

namespace cox::detail {

struct HealthVerdict {
  enum class Where { nothing, forward, backward, outside };
  Where where = Where::nothing;
  std::optional<BlockId> block;  // to blame; outside: the nearest, where there is one
  std::int64_t values = 0;       // non-finite ones that arose there
  friend bool operator==(const HealthVerdict&, const HealthVerdict&) = default;
};

// What the reducer knows of a step besides the calls.
struct StepTrouble {
  std::vector<std::int64_t> in_parameters;  // non-finite gradient values per block
  std::int64_t outside = 0;                 // in parameters of no block
  bool has_bad_loss = false;
};

// Requires: all scans are read; in_parameters has an entry for every block.
HealthVerdict judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble);

// All backward passes over a boundary together.
TensorScan gradient_of(const Boundary& boundary);

}  // namespace cox::detail
