// A trainer with a policy of its own (speed_shares.h). The odd ranks pretend to be slow, so under
// mpiexec the policy gives them fewer samples. Quoted by docs/writing-a-policy.md.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "coxswain/coxswain.h"
#include "sdk/examples/speed_shares.h"

namespace {

// Sample i has the sines of i, 2 i, ... 8 i, and their sum as target.
class Sines final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  cox::Batch get(std::span<const std::int64_t> samples) const override {
    auto x = torch::empty({static_cast<std::int64_t>(samples.size()), 8});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      x[static_cast<std::int64_t>(i)] = torch::sin(torch::arange(1, 9) * samples[i]);
    }
    return {.inputs = x, .targets = x.sum(1, true), .samples = x.size(0)};
  }
};

void pretend_to_be_slow(const cox::Session& session, std::int64_t samples) {
  if (session.rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(samples));
}

}  // namespace

int main(int argc, char** argv) try {
  // [register]
  auto session = cox::Session::start(
      argc, argv,
      {.policies = {std::make_shared<example::SpeedShares>()}, .program = "custom_policy"});
  // [/register]
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 32, .steps = 60});
  const Sines dataset;
  for (auto& step : trainer.steps(dataset)) {
    const auto& batch = step.batch();
    const auto loss = step.forward([&] {
      pretend_to_be_slow(session, batch.samples);
      return torch::mse_loss(model(batch.inputs), batch.targets);
    });
    step.backward(loss);
    step.update();
  }
  session.finish();
  if (session.rank() == 0) {
    const cox::SessionReport report = session.report();
    std::printf("%lu plans; %s\n", report.plans, report.last_reason.c_str());
  }
} catch (const std::exception& error) {
  return cox::report(error);
}
