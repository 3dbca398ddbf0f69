// The host waits for the device as often as in a user's loop without Coxswain, whatever is steered.
#include "waits.h"

#include <torch/torch.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coxswain/reducer.h"
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

// Sets all blocks to another level of recompute every second round.
class EveryLevel final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "every_level"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    const std::uint64_t round = input.signals.round.value();
    if (round % 2 != 0) return {{}, {}, state};
    const auto level = static_cast<unsigned>(1 + round / 2 % kRecomputeLevels);
    const ActionProfile actions(input.job.blocks.size(), recompute_level(level));
    Reason reason;
    reason.code = ReasonCode::custom;
    reason.text = "another level";
    return {{{SetActions{{actions}, {}}, reason}}, {}, state};
  }
};

// Returns the most waits of a step of a loop with a Reducer that reads its loss.
std::uint64_t waits_of_reducer_loop() {
  auto session = solo_session({"--cox.run.device=cuda"});
  gpt2::Gpt2 model = small_gpt();
  model->to(session.device());
  Reducer reducer(session, *model);
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  const SmallText data;
  StepWaits waits;
  for (std::int64_t i = 0; i < 12; ++i) {
    waits.next_step();
    const Batch batch = data.get(std::vector<std::int64_t>{i, i + 5});
    const auto there = [&](const at::Tensor& tensor) {
      return tensor.pin_memory().to(session.device(), true);
    };
    auto step = session.step();
    reducer.backward(step, model->loss(there(batch.inputs), there(batch.targets)), 2);
    const ReductionOutcome outcome = reducer.average(step);
    CHECK(outcome.loss > 0);
    if (outcome.finite) optimizer.step();
    optimizer.zero_grad();
  }
  waits.next_step();
  session.finish();
  return waits.most();
}

}  // namespace

TEST_CASE("a Trainer adds no wait for the device to a step, whatever it steers") {
  train_on("cuda", {{}, {.steps = 1}});  // the first engine on a device keeps the device
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
      {{kForce + "offload", "--cox.memory.smallest_bytes=1", kFormat + "bf16"}},
      {{kForce + "recompute", kFormat + "fp8"}},
      {{kFormat + "bf16", "--cox.precision.sample_every=1"}},
      {{"--cox.checkpoint.snapshot_rounds=2"}},
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

TEST_CASE("a step waits as often at every level of recompute, and when the level changes") {
  SessionOptions with;
  with.policies.push_back(std::make_shared<EveryLevel>());
  std::set<unsigned> levels;
  const auto look = [&](const Session& session) {
    levels.insert(level_of(action_of(session.plan(), kRoot, BlockId(1))));
  };
  // Observes memory only, because its plans would interfere with the policy's.
  const std::vector<std::string> flags = {"--cox.run.device=cuda", "--cox.memory.budget=1GiB",
                                          "--cox.memory.mode=observe"};
  const std::uint64_t waits =
      waits_of_trainer(flags, small_gpt(), {.steps = 20}, std::move(with), look);
  MESSAGE("waits of a step: ", waits, " at ", levels.size(), " levels");
  CHECK(levels.size() > kRecomputeLevels / 2);
  CHECK(waits == waits_of_own_loop(Scaling::none));
}

TEST_CASE("a loop with a Reducer waits no more often than one that looks at its loss and clips") {
  const std::uint64_t waits = waits_of_reducer_loop();
  MESSAGE("waits of a step: ", waits);
  CHECK(waits <= waits_of_own_loop(Scaling::none));
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
       {std::string("--cox.run.name=plain"), kFormat + "bf16", kFormat + "fp16", kFormat + "fp8",
        kFormat + "auto", kForce + "recompute", kForce + "offload",
        std::string("--cox.memory.budget=1GiB"), std::string("--cox.stragglers.mode=on")}) {
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

TEST_CASE("steps whose gradients are not finite wait once more, to learn which block is to blame") {
  const auto waits_with = [](const auto& begin) {
    return waits_of_own_loop(Scaling::none, begin, Losses::end_in_nan);
  };
  const std::uint64_t plain = waits_with([](auto&) {});
  for (const std::string format : {"bf16", "fp8"}) {
    CAPTURE(format);
    auto session = solo_session({"--cox.run.device=cuda", kFormat + format});
    CHECK(waits_with([&](torch::nn::Module& model) { session.adopt(model); }) == plain + 1);
    session.finish();
  }
}
