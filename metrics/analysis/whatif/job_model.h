// JobModel: a job as one graph of operations that every step and data-parallel rank ran, with what
// each operation took by itself; and simulate(), which runs the steps again with other times.
//
//   Trace or RunRecord -> model_of() -> JobModel -> simulate(own times) -> seconds of each step
//
// An operation starts when all that it depends on have ended. Operations that wait for each other
// form a group: all members end when the last of them has started, each plus its own time. So a
// model holds no waiting: it arises in the simulation. The definitions are those of
// docs/what-if.md, after "Understanding Stragglers in Large Model Training Using What-if Analysis"
// (OSDI 2025). Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::diagnosis {

// What the operations of a kind have in common.
struct OperationType {
  enum class Centre : std::uint8_t { mean, median };  // what the ideal time of the kind is
  enum class Traffic : std::uint8_t { none, pipeline, data_parallel };

  std::string name;
  std::string label;  // under which its slowdown is told; several types may share one
  Centre centre = Centre::mean;
  Traffic traffic = Traffic::none;
};

struct Operation {
  std::uint16_t type = 0;  // index
  std::uint32_t stage = 0;
};

// Members end together. The group of an operation that waits for nobody has that one member.
struct OperationGroup {
  enum class Reach : std::uint8_t { dp_rank, all_dp_ranks };

  std::vector<std::uint32_t> members;
  Reach reach = Reach::dp_rank;
};

// In an order in which all that the members of a group depend on are in groups before it.
struct OperationGraph {
  std::vector<OperationGroup> groups;
  std::vector<std::vector<std::uint32_t>> depends_on;  // of each operation
};

// Puts groups into an order that simulate() can follow; operations that are in none get one of
// their own. invalid_argument when operations depend on each other in a circle. REQUIRES: no
// operation is in two groups.
Result<OperationGraph> ordered(std::vector<OperationGroup> groups,
                               std::vector<std::vector<std::uint32_t>> depends_on);

struct JobModel {
  std::size_t dp_ranks = 0;
  std::size_t stages = 0;
  std::size_t chunks = 1;  // of the model in each stage
  std::vector<OperationType> types;
  std::vector<Operation> operations;
  OperationGraph graph;
  std::vector<std::int32_t> ranks;     // [dp_rank][stage]
  std::vector<std::int64_t> steps;     // their numbers, ascending
  std::vector<double> own_seconds;     // [step][operation][dp_rank]; communication: its transfer
  std::vector<double> traced_seconds;  // [step]: as recorded
  std::vector<std::string> gaps;       // what the figures leave out; a sentence each
  std::string doubt;  // why no rank is to be named, as "clocks of ranks disagree"; mostly empty
};

// Returns the seconds of each step with these own times, laid out as own_seconds but for so many
// data-parallel ranks: several that take the same times need one place only. Linear in the number
// of operations and dependencies. REQUIRES: own has that size; lanes > 0.
std::vector<double> simulate(const JobModel& model, std::span<const double> own, std::size_t lanes);
inline std::vector<double> simulate(const JobModel& model, std::span<const double> own) {
  return simulate(model, own, model.dp_ranks);
}

}  // namespace cox::diagnosis
