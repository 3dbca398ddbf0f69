// TapeSimulator runs an operator graph forward and backward by the rules of the tape, slowly and
// plainly, with a number in place of each tensor's bits. The simulator computes the inputs of
// operators, and fails if a replay would read or give autograd other bits than the first run. Tests
// compare the planner's model with the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::test {

// Bytes of live kept and remade values when backward comes to an operator, and when backward has
// all values saved by the operator.
struct SimulatedLevels {
  std::int64_t asking_bytes = 0;
  std::int64_t running_bytes = 0;
};

struct SimulatedStep {
  std::vector<std::int32_t> replayed;
  std::int64_t ns = 0;
  std::int64_t bytes = 0;            // peak of remade values
  std::int64_t bytes_with_held = 0;  // peak of remade and kept values
  std::int64_t bytes_with_gradients = 0;
  std::vector<SimulatedLevels> levels;  // [operator]
  std::string error;                    // empty: all bits were right
};

SimulatedStep simulate(const planner::OperatorGraph& graph, const planner::KeptSet& kept);

// Returns a graph of `operators` operators with views, writes in place, several results, parts
// without gradients, values saved early and late.
planner::OperatorGraph random_graph(std::mt19937_64& random, std::size_t operators);

}  // namespace cox::test
