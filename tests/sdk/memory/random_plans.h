// Trains the unchanged models of sdk/examples/models under random memory plans. Compares all
// results of every step, bit for bit, with the same steps when every block is kept. Each step draws
// a new plan with an action (keep, full recompute, a level with random storages, offload) and a
// format (fp32, bf16, fp8) for each block. For a test of few plans and a benchmark of many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cox::test {

// The backward passes of a step.
enum class Way : std::uint8_t {
  once,
  accumulated,           // two batches, each with its own backward pass
  together,              // two batches in one backward pass
  retained,              // one batch, two passes through the same graph
  twice_differentiated,  // the loss and the squares of its gradients
};
inline constexpr std::size_t kWays = 5;
const char* name_of(Way way);

// The results of the plans of one model and one way.
struct PlanTrials {
  std::string model;
  Way way = Way::once;
  int plans = 0;                       // drawn, one for each step
  int refused = 0;                     // steps in which plain training throws, too
  std::int64_t dropped = 0;            // saved tensors that levels dropped
  std::int64_t full = 0;               // blocks in full recompute, summed over the plans
  std::int64_t narrow = 0;             // blocks in bf16 or fp8, likewise
  std::int64_t offloaded = 0;          // bytes written to the tier
  std::vector<std::string> different;  // a sentence for each step that differs
};

// Runs `trials` seeded trainings of two steps for each of the seven models and each way. `tier` is
// an existing folder for offloaded tensors. Installs the engine of saved tensors; throws
// std::runtime_error if LibTorch refuses the engine.
std::vector<PlanTrials> try_random_plans(std::uint64_t seed, int trials,
                                         const std::filesystem::path& tier);

}  // namespace cox::test
