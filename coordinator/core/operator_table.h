// OperatorTable: which operators the forward passes of a rank called, how often, how long they took
// and how much arithmetic they were, by operator and block. Its rows are sums over the steps that
// were sampled (sdk/src/blocks/operator_watch.h).
//
//   operator stream -> add_row() for what a sampled step called -> OperatorTable -> operators.json
//   of the rank, its part of the status page, `cox ops`
//
// A rank's table holds no operators of backward passes: nobody sees those one by one. What they
// cost is known by block (BlockTime) and as FLOPs of the gradients that are needed. Plain values,
// pure functions.
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
  std::uint64_t forward_ns = 0;    // on the thread that called it
  std::uint64_t result_bytes = 0;  // of results in memory of their own: no views, nothing in place
  std::optional<OperatorFlops> flops{};  // none where the operator has no count

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
  StepId newest{};                // of them
  std::vector<BlockTime> blocks;  // of the rank, in the order of its plans
  std::vector<OperatorRow> rows;  // sorted by name, then block; no two alike

  friend bool operator==(const OperatorTable&, const OperatorTable&) = default;
};

// Adds the counts, whose own name and block do not matter, to the table's row of that name and
// block. Allocates only where there is none yet.
void add_row(OperatorTable& table, std::string_view name, std::string_view block,
             const OperatorRow& counts);

// Returns the rows whose block fits the pattern, in which '*' stands for any text, added up by
// operator, sorted by name.
std::vector<OperatorRow> by_operator(const OperatorTable& table, std::string_view block_pattern);
// Returns one row a block, in the order of table.blocks; blocks without operators are left out.
std::vector<OperatorRow> by_block(const OperatorTable& table);
// Returns the sum of the rows.
OperatorRow sum_of(std::span<const OperatorRow> rows);
// Returns the counted FLOPs of a mean step; nothing where none were counted.
std::optional<double> flops_of_step(const OperatorTable& table);
// Returns the sum of those that have no count of FLOPs.
OperatorRow uncounted_of(std::span<const OperatorRow> rows);

enum class OperatorOrder : std::uint8_t { time, bytes, flops };
// Sorts with the largest first, and by name and block where they are equal.
void sort_rows(std::vector<OperatorRow>& rows, OperatorOrder order);

}  // namespace cox
