// OC: the cost of hashing each byte that goes to a folder and comes back. Two GPT-2s whose blocks
// are all offloaded take turns, one with the check and one without. The thread that moves the bytes
// hashes them, so the training thread pays only where it has to wait for that thread.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/line.h"
#include "tests/sdk/memory/steered_gpt.h"

namespace cox::bench {
namespace {

using test::SteeredGpt;
using Actions = std::vector<MemoryAction>;

enum class Check : bool { off, on };

test::SampleShape shape() {
  test::SampleShape shape;
  shape.model.n_layer = 8;
  shape.sequences = 16;
  return shape;
}

MemoryConfig config_of(Check check) {
  MemoryConfig config = SteeredGpt::planned();
  config.tier_directory = std::filesystem::temp_directory_path().string();
  config.verify_offload = check == Check::on;
  return config;
}

double milliseconds(SteeredGpt& gpt, const Actions& actions) {
  return std::chrono::duration<double, std::milli>(gpt.run(actions).time).count();
}

int run(Effort effort) {
  at::set_num_threads(1);
  SteeredGpt with(shape(), config_of(Check::on)), without(shape(), config_of(Check::off));
  const Actions offload(with.measure().front.back().actions.size(), MemoryAction::offload);
  const Actions keep(offload.size(), MemoryAction::keep);
  std::vector<double> growth, times, kept;
  const int turns = effort == Effort::quick ? 12 : 150;
  for (int turn = -2; turn < turns; ++turn) {  // the first two fill caches and the folder's files
    SteeredGpt& first = turn % 2 == 0 ? with : without;
    SteeredGpt& second = turn % 2 == 0 ? without : with;
    double one = milliseconds(first, offload), other = milliseconds(second, offload);
    if (turn % 2 != 0) std::swap(one, other);
    if (turn < 0) continue;
    growth.push_back(100 * (one / other - 1));
    times.push_back(one);
    if (turn % 4 == 0) kept.push_back(milliseconds(without, keep));
  }
  const Median centre = centre_of(growth);
  Line("OC", centre.value, "%")
      .limit(1)
      .with("figure", "growth of a step whose blocks are offloaded, by the check of their bytes")
      .with("low_95", centre.low)
      .with("high_95", centre.high)
      .with("pairs", static_cast<double>(growth.size()))
      .with("step_ms", median_of(times).value)
      .with("step_ms_where_blocks_are_kept", median_of(kept).value)
      .print();
  return 0;
}

}  // namespace
}  // namespace cox::bench

int main(int argc, char** argv) {
  return cox::bench::run(cox::bench::effort_of(argc, argv));
}
