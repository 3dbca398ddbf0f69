#include "tests/planner/random_step.h"

#include <algorithm>
#include <vector>

namespace cox::test {

using planner::StepGraph;

std::int64_t drawn(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

StepGraph random_step(std::mt19937_64& random, std::int32_t length) {
  StepGraph graph;
  graph.base_bytes = drawn(random, 0, 100);
  std::vector<std::vector<std::int32_t>> inputs;
  for (std::int32_t i = 0; i < length; ++i) {
    graph.tensors.push_back({drawn(random, 1, 20), false});
    std::vector<std::int32_t> reads;
    if (i > 0) reads.push_back(i - 1);
    if (i > 2 && drawn(random, 0, 3) == 0)
      reads.push_back(static_cast<std::int32_t>(drawn(random, 0, i - 2)));
    graph.operators.push_back({"forward", drawn(random, 1, 30), reads, {i}});
    inputs.push_back(reads);
  }
  std::int32_t gradient = length - 1;
  for (std::int32_t i = length; i-- > 0;) {
    std::vector<std::int32_t> reads = inputs[static_cast<std::size_t>(i)];
    if (std::ranges::find(reads, gradient) == reads.end()) reads.push_back(gradient);
    gradient = static_cast<std::int32_t>(graph.tensors.size());
    graph.tensors.push_back({drawn(random, 1, 20), i == 0});
    std::vector<std::int32_t> makes{gradient};
    if (drawn(random, 0, 2) == 0) {
      makes.push_back(gradient + 1);
      graph.tensors.push_back({drawn(random, 1, 4), true});
    }
    graph.operators.push_back({"backward", drawn(random, 1, 60), reads, makes});
  }
  return graph;
}

}  // namespace cox::test
