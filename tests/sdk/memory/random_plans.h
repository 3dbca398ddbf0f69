// Trains the models of sdk/examples/models, as they stand, under random plans of memory, and
// compares what every step leaves, bit for bit, with the same steps when every block is kept. A
// plan is drawn anew for each step and has for each block an action (keep, full recompute, one of
// its levels with random storages, offload) and a format (fp32, bf16, fp8). For a test of few
// plans and a benchmark of many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cox::test {

// How a step goes backward.
enum class Way : std::uint8_t {
  once,
  accumulated,           // two batches, each with a backward pass of its own
  together,              // two batches, one backward pass of both
  retained,              // one batch, backward twice through the same graph
  twice_differentiated,  // the loss and the squares of its gradients
};
inline constexpr std::size_t kWays = 5;
const char* name_of(Way way);

// What the plans of one model and one way came to.
struct PlanTrials {
  std::string model;
  Way way = Way::once;
  int plans = 0;               // that were drawn, one for each step
  int refused = 0;             // steps that plain training throws in as well: nothing to compare
  std::int64_t dropped = 0;    // saved tensors that a level did not keep
  std::int64_t full = 0;       // blocks recomputed in full, summed over the plans
  std::int64_t narrow = 0;     // blocks in bf16 or fp8, as well
  std::int64_t offloaded = 0;  // bytes that were written to the tier
  std::vector<std::string> different;  // a sentence for each step that differs
};

// Runs `trials` trainings of two steps for each of the seven models and each way, drawn from the
// seed. `tier`: an existing folder for what is offloaded. Installs the engine of saved tensors;
// throws std::runtime_error where that is refused.
std::vector<PlanTrials> try_random_plans(std::uint64_t seed, int trials,
                                         const std::filesystem::path& tier);

}  // namespace cox::test
