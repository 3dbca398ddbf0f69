// The host waits for the device in a step as often as in the loop that a person writes without
// Coxswain, whatever is steered.
#include "waits.h"

#include <torch/torch.h>

#include <string>
#include <vector>

#include "small_text.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

const std::string kFormat = "--cox.precision.format=";
const std::string kForce = "--cox.memory.force=*=";

struct Case {
  std::vector<std::string> flags;
  TrainerOptions options{};
};

std::string name_of(const Case& each) {
  std::string name = "micro_batch=" + std::to_string(each.options.micro_batch);
  for (const std::string& flag : each.flags) name += " " + flag;
  return name;
}

TrainerOptions micro_batches_of(std::int64_t samples) {
  TrainerOptions options;
  options.micro_batch = samples;
  return options;
}

}  // namespace

TEST_CASE("a Trainer adds no wait for the device to a step, whatever it steers") {
  train_on("cuda", {{}, {.steps = 1}});  // the first engine that runs on a device keeps it
  const std::uint64_t plain = waits_of_own_loop(Scaling::none);
  MESSAGE("waits of a plain step: ", plain);
  const TrainerOptions prefetched{.prefetch = 2};
  const std::vector<Case> cases = {
      {{}},
      {{kFormat + "bf16"}},
      {{kFormat + "fp8"}},
      {{kFormat + "fp16"}},
      {{kFormat + "fp16", kForce + "recompute"}},
      {{kFormat + "auto"}},
      {{kForce + "recompute"}},
      {{kForce + "offload", "--cox.memory.smallest_bytes=1"}},
      {{"--cox.memory.budget=1GiB"}},
      {{"--cox.guard.mode=on"}},
      {{"--cox.stragglers.mode=on"}},
      {{}, prefetched},
      {{}, micro_batches_of(2)},
      {{"--cox.accumulation.mode=on"}, micro_batches_of(2)},
      {{kFormat + "bf16", kForce + "recompute"}, micro_batches_of(2)},
      {{kFormat + "fp16"}, micro_batches_of(2)},
  };
  for (const Case& each : cases) {
    const std::uint64_t waits = [&] {
      std::vector<std::string> flags = each.flags;
      flags.push_back("--cox.run.device=cuda");
      return waits_of_trainer(flags, small_gpt(), each.options);
    }();
    const std::string name = name_of(each);
    CAPTURE(name);
    MESSAGE("waits of a step: ", waits, " ", name);
    CHECK(waits == plain);
  }
}

TEST_CASE("tiles add no wait for the device, be they kept or computed again") {
  const std::uint64_t plain = waits_of_own_loop(Scaling::none);
  for (const std::string action : {"keep", "tile"}) {
    CAPTURE(action);
    const std::uint64_t waits =
        waits_of_trainer({"--cox.run.device=cuda", kForce + action}, TiledText());
    MESSAGE("waits of a step: ", waits, " ", action);
    CHECK(waits <= plain);
  }
}

TEST_CASE("an adopted loop waits for the device as often as the same loop that nobody sees") {
  const std::uint64_t plain = waits_of_own_loop(Scaling::none);
  const std::uint64_t scaled = waits_of_own_loop(Scaling::losses);
  for (const std::string& flag :
       {std::string("--cox.run.name=plain"), kFormat + "bf16", kFormat + "fp16",
        kForce + "recompute", kForce + "offload", std::string("--cox.memory.budget=1GiB"),
        std::string("--cox.stragglers.mode=on")}) {
    CAPTURE(flag);
    const Scaling scaling = flag == kFormat + "fp16" ? Scaling::losses : Scaling::none;
    auto session = solo_session({"--cox.run.device=cuda", flag});
    const std::uint64_t waits =
        waits_of_own_loop(scaling, [&](torch::nn::Module& model) { session.adopt(model); });
    MESSAGE("waits of a step: ", waits, " ", flag);
    CHECK(waits == (scaling == Scaling::losses ? scaled : plain));
    session.finish();
  }
}
