// JobModel is a job as one graph of operations, which every step and data-parallel rank ran, with
// each operation's own time. simulate() runs the steps again with other times.
//
//   Trace or RunRecord -> model_of() -> JobModel -> simulate(own times) -> seconds of each step
//
// An operation starts when all of its dependencies have ended. Operations that wait for each other
// form a group: each member ends its own time after the last member has started. So a model holds
// no waiting; the simulation creates it. docs/what-if.md has the definitions, after "Understanding
// Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025). Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::diagnosis {

// The common properties of a kind of operations.
struct OperationType {
  enum class Centre : std::uint8_t { mean, median };  // gives the kind's ideal time
  enum class Traffic : std::uint8_t { none, pipeline, data_parallel };

  std::string name;
  std::string label;  // names the slowdown; several types may share a label
  Centre centre = Centre::mean;
  Traffic traffic = Traffic::none;
};

struct Operation {
  std::uint16_t type = 0;  // index
  std::uint32_t stage = 0;
};

// Members end together. An operation that waits for no other is the only member of its group.
struct OperationGroup {
  enum class Reach : std::uint8_t { dp_rank, all_dp_ranks };

  std::vector<std::uint32_t> members;
  Reach reach = Reach::dp_rank;
};

// A graph in topological order: all dependencies of a group's members are in earlier groups.
struct OperationGraph {
  std::vector<OperationGroup> groups;
  std::vector<std::vector<std::uint32_t>> depends_on;  // [operation]
};

// Sorts groups into an order for simulate(). Adds a group for each operation without one.
// invalid_argument for a circle of dependencies. REQUIRES: no operation is in two groups.
Result<OperationGraph> ordered(std::vector<OperationGroup> groups,
                               std::vector<std::vector<std::uint32_t>> depends_on);

struct JobModel {
  std::size_t dp_ranks = 0;
  std::size_t stages = 0;
  std::size_t chunks = 1;  // model chunks in each stage
  std::vector<OperationType> types;
  std::vector<Operation> operations;
  OperationGraph graph;
  std::vector<std::int32_t> ranks;     // [dp_rank][stage]
  std::vector<std::int64_t> steps;     // step numbers, ascending
  std::vector<double> own_seconds;     // [step][operation][dp_rank]; communication: the transfer
  std::vector<double> traced_seconds;  // [step]: as recorded
  std::vector<std::string> gaps;       // data left out of the figures; a sentence each
  std::string doubt;  // why no rank may be named, as "clocks of ranks disagree"; usually empty
};

// Returns the seconds of each step with these own times. `own` is laid out as own_seconds, but for
// `lanes` data-parallel ranks; ranks with equal times need only one lane. Linear in the number of
// operations and dependencies. REQUIRES: own has that size; lanes > 0.
std::vector<double> simulate(const JobModel& model, std::span<const double> own, std::size_t lanes);
inline std::vector<double> simulate(const JobModel& model, std::span<const double> own) {
  return simulate(model, own, model.dp_ranks);
}

}  // namespace cox::diagnosis
