#include "tests/sdk/memory/steered_gpt.h"

#include <ATen/autocast_mode.h>

#include <stdexcept>
#include <utility>

#include "coordinator/planner/memory_facts.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/memory_calibration.h"
#include "sdk/src/memory/sample_trial.h"

namespace cox::test {
namespace {

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.text());
}

// Keeps casts of weights for the forward pass, as a trainer would.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, Arithmetic arithmetic) : device_(device) {
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, arithmetic == Arithmetic::bf16_autocast);
  }
  ~AutocastScope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
};

}  // namespace

SteeredGpt::SteeredGpt(const SampleShape& shape, MemoryConfig config, Arithmetic arithmetic,
                       Gradients gradients)
    : config_(std::move(config)), arithmetic_(arithmetic) {
  require(detail::install_counting_allocator());
  torch::manual_seed(11);
  model_ = gpt2::Gpt2(shape.model);
  model_->train();
  const std::vector<std::int64_t> sizes = {shape.sequences, shape.model.n_positions};
  inputs_ = torch::randint(256, sizes, at::kLong);
  targets_ = torch::randint(256, sizes, at::kLong);
  blocks_.attach(*model_);
  probe_.attach(*model_);
  const c10::Device device = probe_.memory().device();
  if (contains(detail::actions_of(config_, device), MemoryAction::offload))
    actuator_.open_tier(device, 0);
  if (gradients == Gradients::released) held_.released = model_->parameters();
  step_ = std::make_unique<detail::TrialStep>(
      *model_, [this] { return loss(); }, held_.released);
}

MemoryConfig SteeredGpt::planned() {
  MemoryConfig config;
  config.mode = PolicyMode::on;
  return config;
}

at::Tensor SteeredGpt::loss() {
  const AutocastScope autocast(inputs_.device().type(), arithmetic_);
  return model_->loss(inputs_, targets_);
}

MemoryModel SteeredGpt::measure() {
  const detail::BlockWatch::Following shown(blocks_);
  const detail::SampleStep sample{*model_, [this] { return loss(); }};
  const ActionSet actions = detail::actions_of(config_, probe_.memory().device());
  detail::SampleTrial trial({blocks_, probe_.memory(), actuator_.offloader()}, {.actions = actions},
                            {sample, held_});
  trial.choose_levels(trial.measure_regions());
  auto problem = trial.measure();
  require(problem.status());
  auto facts = planner::memory_facts({{*problem, 0}}, blocks_.size());
  require(facts.status());
  return facts->models.front();
}

SteeredGpt::Step SteeredGpt::run(const std::vector<MemoryAction>& actions) {
  const detail::BlockWatch::Following shown(blocks_);
  detail::set_actions(blocks_.visits()->parts().steering, actions);
  probe_.memory().reset_peak();
  const auto start = std::chrono::steady_clock::now();
  require(step_->run());
  blocks_.visits()->forget_step();
  return {probe_.memory().count().peak_bytes, std::chrono::steady_clock::now() - start};
}

std::int64_t SteeredGpt::held_by_trial() {
  return 2 * static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().get_state().nbytes());
}

}  // namespace cox::test
