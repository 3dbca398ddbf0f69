#include "sdk/src/session/memory_steering.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/planner/memory_problem.h"
#include "coordinator/policies/memory/model.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/tier.h"
#include "sdk/src/precision/trial_step.h"

namespace cox::detail {
namespace {

std::int64_t budget_bytes(const MemoryConfig& config, std::int64_t limit_bytes) {
  RankMemory rank;
  rank.limit_bytes = limit_bytes;
  rank.keep_bytes = limit_bytes;  // as if everything were needed
  return budget_of(config, rank).bytes;
}

// No action may change a bit; where one does, or the step differs by itself, nothing is planned.
Status same_gradients(const TrialStep& step, const std::vector<std::uint64_t>& before) {
  const std::vector<std::string> names = step.parameter_names();
  for (std::size_t p = 0; p < names.size(); ++p) {
    if (step.gradients()[p] == before[p]) continue;
    return failed_precondition(
        "memory: expected the same gradients from the same step under every memory action, found "
        "others for parameter " +
        names[p] + "; activations are kept. Does the loss depend on more than the batch, the " +
        "parameters and torch's random numbers?");
  }
  return ok_status();
}

}  // namespace

MemorySteering::MemorySteering(const MemoryConfig& config, BlockWatch& blocks, Log log)
    : config_(config),
      blocks_(blocks),
      log_(std::move(log)),
      is_wanted_(config.mode ? *config.mode != PolicyMode::off : wants_memory_plan(config)) {}

ActionSet MemorySteering::actions() const {
  ActionSet actions = only(MemoryAction::keep);
  if (!is_wanted_) return actions;
  if (config_.recompute) actions |= only(MemoryAction::recompute);
  if (config_.tile) actions |= only(MemoryAction::tile);
  if (config_.offload && !config_.tier_directory.empty()) actions |= only(MemoryAction::offload);
  return actions;
}

void MemorySteering::open(const MemoryShare& share) {
  share_ = share;
  if (contains(actions(), MemoryAction::offload)) open_tier();
}

void MemorySteering::open_tier() {
  OffloadOptions options;
  options.folder = config_.tier_directory;
  if (share_.tier_bytes > 0) options.tier_bytes = share_.tier_bytes;
  options.smallest_bytes = config_.smallest_bytes;
  options.report = [log = log_](const Status& trouble) { log.warning(trouble.message()); };
  const auto speed = measure_tier(options.folder);
  if (!speed.ok()) {  // a folder that is missing, read-only or full
    log_.warning("memory.tier_directory: " + speed.status().message() + "; nothing is offloaded");
    return;
  }
  offloader_ = std::make_unique<Offloader>(std::move(options));
  if (!offloader_->tier_status().ok()) {
    offloader_.reset();
    return;
  }
  copy_bytes_per_ms_ = std::min(speed->write_bytes_per_ms, speed->read_bytes_per_ms);
  blocks_.set_offload([this](const BlockState& state) -> std::shared_ptr<SavedTensorFrame> {
    const auto module = state.module.lock();
    return module ? offloader_->open_frame(state.name, *module) : nullptr;
  });
}

TrialSettings MemorySteering::trial_settings() const {
  TrialSettings settings;
  settings.actions = actions();
  if (!offloader_) settings.actions = without(settings.actions, MemoryAction::offload);
  settings.budget_bytes = budget_bytes(config_, share_.limit_bytes);
  settings.copy_bytes_per_ms = copy_bytes_per_ms_;
  return settings;
}

Result<MemoryProblem> MemorySteering::measure(TrialStep& step, std::int64_t resident_later_bytes,
                                              const std::function<void()>& forget) {
  const std::int64_t base_bytes = counted_memory().live_bytes + resident_later_bytes;
  TrialSettings settings = trial_settings();
  settings.budget_bytes -= resident_later_bytes;
  const auto moved = [this] { return offloader_ ? offloader_->counts().written_bytes : 0; };
  std::vector<std::uint64_t> gradients;
  const auto pass = [&](const Actions& actions) -> Result<StepReading> {
    blocks_.steer(actions);
    if (offloader_) offloader_->begin_step();
    if (forget) forget();
    auto reading = blocks_.traced([&] { return step.run(); }, moved);
    if (!reading.ok()) return reading;
    if (gradients.empty()) gradients = step.gradients();
    const Status same = same_gradients(step, gradients);
    return same.ok() ? std::move(reading) : Result<StepReading>(same);
  };
  auto problem = measure_problem(blocks_.size(), settings, pass);
  followed_.reset();
  if (!problem.ok()) return problem;
  problem->base_bytes = base_bytes;
  restrict_to_rules(*problem);
  for (const PinnedBlock& pinned : blocks_.pinned()) {
    log_.warning("memory: block " + blocks_.names()[pinned.block.value()] +
                 " is kept: " + pinned.reason);
  }
  problem_ = *problem;
  return problem;
}

void MemorySteering::predict(const Actions& actions) {
  predicted_peak_bytes_ = 0;
  if (!problem_) return;
  Actions per_stage;
  for (const Stage& stage : problem_->stages) {
    const bool is_gap = stage.block == kGap;
    per_stage.push_back(is_gap ? MemoryAction::keep
                               : actions[static_cast<std::size_t>(stage.block)]);
  }
  predicted_peak_bytes_ = planner::schedule(*problem_, per_stage).peak_bytes;
}

void MemorySteering::restrict_to_rules(MemoryProblem& problem) const {
  const std::vector<std::string> names = blocks_.names();
  for (Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    const ActionSet allowed =
        allowed_actions(config_, names[static_cast<std::size_t>(stage.block)]);
    bool any = false;
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      StageOption& option = stage.options[a];
      option.allowed = option.allowed && contains(allowed, static_cast<MemoryAction>(a));
      any = any || option.allowed;
    }
    // Where nothing is left of a forced action that cannot be carried out here, the block is kept.
    if (!any) stage.options[static_cast<std::size_t>(MemoryAction::keep)].allowed = true;
  }
  if (share_.tier_bytes > 0) problem.tier_bytes = share_.tier_bytes;
  if (config_.most_recomputed < 1) {
    problem.most_recomputed = static_cast<std::int32_t>(
        std::floor(config_.most_recomputed * static_cast<double>(names.size())));
  }
}

void MemorySteering::forget() {
  problem_.reset();
  followed_.reset();
  predicted_peak_bytes_ = 0;
}

void MemorySteering::follow(const Plan& plan, RankId rank) {
  if (offloader_) offloader_->begin_step();
  if (!is_wanted_ || followed_ == plan.id) return;
  followed_ = plan.id;
  Actions actions(blocks_.size());
  for (std::size_t b = 0; b < actions.size(); ++b) {
    actions[b] = action_of(plan, rank, BlockId(static_cast<BlockId::rep>(b)));
  }
  blocks_.steer(actions);
  predict(actions);
}

}  // namespace cox::detail
