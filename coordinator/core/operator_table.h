// OperatorTable: the operators that the forward passes of a rank called, with number of calls, time
// and FLOPs, by operator and block. Rows are sums over the sampled steps
// (sdk/src/blocks/operator_watch.h). A table holds no operators of backward passes, which cannot be
// observed one by one. The cost of backward operators is known by block (BlockTime) and as FLOPs of
// the needed gradients. Plain values, pure functions.
//
//   operator stream of a sampled step -> add_row() -> OperatorTable -> operators.json of the rank,
//   its part of the status page, `cox ops`
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/operator_flops.h"
#include "coordinator/core/units.h"

namespace cox {

struct OperatorRow {
  std::string name;   // "aten::addmm"; empty in a sum over several
  std::string block;  // empty in a sum over several
  std::uint64_t calls = 0;
  std::uint64_t forward_ns = 0;    // on the calling thread
  std::uint64_t result_bytes = 0;  // of results in memory of their own: no views, nothing in place
  std::optional<OperatorFlops> flops{};  // none if the operator has no count

  friend bool operator==(const OperatorRow&, const OperatorRow&) = default;
};

// Times of a block in a step, summed over its visits, measured in steps that are not sampled.
struct BlockTime {
  std::string name;
  double forward_seconds = 0;
  double backward_seconds = 0;
  friend bool operator==(const BlockTime&, const BlockTime&) = default;
};

struct OperatorTable {
  std::uint64_t steps = 0;        // sampled
  StepId newest{};                // newest sampled step
  std::vector<BlockTime> blocks;  // of the rank, in the order of its plans
  std::vector<OperatorRow> rows;  // sorted by name, then block; all different

  friend bool operator==(const OperatorTable&, const OperatorTable&) = default;
};

// Adds the counts to the table's row of `name` and `block`; the name and block in `counts` are
// ignored. Allocates only for a new row.
void add_row(OperatorTable& table, std::string_view name, std::string_view block,
             const OperatorRow& counts);

// Returns the rows whose block fits the pattern, in which '*' matches any text, added up by
// operator and sorted by name.
std::vector<OperatorRow> by_operator(const OperatorTable& table, std::string_view block_pattern);
// Returns one row per block, in the order of table.blocks; blocks without operators are left out.
std::vector<OperatorRow> by_block(const OperatorTable& table);
// Returns the sum of the rows.
OperatorRow sum_of(std::span<const OperatorRow> rows);
// Returns the counted FLOPs of a mean step; nothing if none were counted.
std::optional<double> flops_of_step(const OperatorTable& table);
// Returns the sum of the rows without a count of FLOPs.
OperatorRow uncounted_of(std::span<const OperatorRow> rows);

enum class OperatorOrder : std::uint8_t { time, bytes, flops };
// Sorts with the largest first; ties by name and block.
void sort_rows(std::vector<OperatorRow>& rows, OperatorOrder order);

}  // namespace cox
