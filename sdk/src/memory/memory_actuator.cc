#include "sdk/src/memory/memory_actuator.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "coordinator/planner/memory_problem.h"
#include "coordinator/policies/memory/budget.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/memory/pinned_tier.h"
#include "sdk/src/memory/tier.h"

namespace cox::detail {
namespace {

// A larger step may have its peak elsewhere, so the measured least peak does not help. Each block
// holds as little as it can instead.
std::vector<MemoryAction> least_held(const MemoryProblem& problem, std::size_t blocks,
                                     ActionSet usable = kEveryAction) {
  std::vector<MemoryAction> actions(blocks, MemoryAction::keep);
  for (const Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    MemoryAction& best = actions[static_cast<std::size_t>(stage.block)];
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      if (!contains(usable, static_cast<MemoryAction>(a))) continue;
      const StageOption& option = stage.options[a];
      const bool is_less = option.kept_bytes < stage.option(best).kept_bytes;
      if (option.allowed && (is_less || !stage.option(best).allowed))
        best = static_cast<MemoryAction>(a);
    }
  }
  return actions;
}

}  // namespace

MemoryActuator::MemoryActuator(const MemoryConfig& config, RankId rank, BlockWatch& blocks, Log log)
    : config_(config),
      rank_(rank),
      blocks_(blocks),
      log_(std::move(log)),
      is_wanted_(config.mode ? *config.mode != PolicyMode::off : wants_memory_plan(config)) {}

std::int64_t MemoryActuator::budget_bytes(std::int64_t limit_bytes) const {
  RankMemory rank;
  rank.rank = rank_;
  rank.limit_bytes = limit_bytes;
  rank.keep_bytes = limit_bytes;  // as if all of it were needed
  return budget_of(config_, rank).bytes;
}

void MemoryActuator::open_tier(c10::Device device, std::int64_t tier_bytes) {
  OffloadOptions options;
  options.device = device;
  options.folder = config_.tier_directory;
  options.tier_bytes = tier_bytes;
  options.smallest_bytes = config_.smallest_bytes;
  options.verify = config_.verify_offload ? TierThread::Verify::on : TierThread::Verify::off;
  options.report = [log = log_](const Status& trouble) { log.warning(trouble.message()); };
  const bool has_device = !device.is_cpu();
  const auto speed = has_device ? measure_pinned(device) : measure_tier(options.folder);
  if (!speed.ok()) {  // the folder is missing, read-only or full
    log_.warning(std::string(has_device ? "memory: " : "memory.tier_directory: ") +
                 speed.status().message() + "; nothing is offloaded");
    return;
  }
  options.copy_bytes_per_ms = *speed;
  offloader_ = std::make_unique<Offloader>(std::move(options));
  if (!offloader_->tier_status().ok()) {
    offloader_.reset();
    return;
  }
  blocks_.visits()->parts().region.set_offload(
      [this](const std::string& block) { return offloader_->open_frame(block); });
}

void MemoryActuator::foresee(planner::RankProblem measured) {
  measured_ = std::move(measured);
  front_.reset();
  followed_.reset();
  tell_pinned();
}

void MemoryActuator::forget() {
  measured_ = {};
  front_.reset();
  followed_.reset();
  asked_.clear();
  told_pinned_.clear();
  predicted_peak_bytes_ = 0;
}

void MemoryActuator::tell_pinned() {
  for (const PinnedBlock& pinned : blocks_.pinned()) {
    if (std::ranges::find(told_pinned_, pinned.block) != told_pinned_.end()) continue;
    told_pinned_.push_back(pinned.block);
    log_.warning("memory: block " + blocks_.names()[pinned.block.value()] +
                 " is kept: " + pinned.reason);
  }
}

bool MemoryActuator::has_failed_tier() const {
  return offloader_ != nullptr && !offloader_->tier_status().ok();
}

std::vector<MemoryAction> MemoryActuator::steer(const std::vector<MemoryAction>& actions) {
  asked_ = actions;
  is_without_tier_ = has_failed_tier();
  std::vector<MemoryAction> able = actions;
  if (actions.empty()) return able;
  if (is_without_tier_) {
    const auto instead =
        least_held(measured_.problem, actions.size(), without(kEveryAction, MemoryAction::offload));
    for (std::size_t b = 0; b < able.size(); ++b) {
      if (able[b] == MemoryAction::offload) able[b] = instead[b];
    }
  }
  set_actions(blocks_.visits()->parts().steering, able);
  return able;
}

bool MemoryActuator::leave_lost_tier() {
  if (offloader_ == nullptr || offloader_->counts().lost_reads == 0) return false;
  predicted_peak_bytes_ = predicted_peak(steer(std::vector<MemoryAction>(asked_)));
  return true;
}

std::int64_t MemoryActuator::predicted_peak(const std::vector<MemoryAction>& actions) const {
  const MemoryProblem& problem = measured_.problem;
  if (problem.stages.empty()) return 0;
  return planner::schedule(problem, planner::per_stage(problem, actions)).peak_bytes;
}

std::int64_t MemoryActuator::predicted_peak_with(std::uint64_t samples) const {
  if (predicted_peak_bytes_ == 0 || samples == 0) return predicted_peak_bytes_;
  MemoryModel model;
  model.base_bytes = measured_.problem.base_bytes;
  model.samples = measured_.samples;
  return peak_with(model, predicted_peak_bytes_, std::min(samples, kMaxStepSamples));
}

void MemoryActuator::apply(const Plan& plan, RoundId round) {
  if (!is_wanted_) return;
  if (offloader_) offloader_->begin_step();
  if (blocks_.visits() != nullptr) {
    tell_pinned();
    const bool is_due = config_.verify_steps > 0 && round.value() % config_.verify_steps == 0;
    blocks_.visits()->parts().comparison.compare(
        BitsComparison::Comparing(is_due && round.value() > 0));
  }
  if (followed_ == plan.id && is_without_tier_ == has_failed_tier()) return;
  followed_ = plan.id;
  std::vector<MemoryAction> actions(blocks_.size());
  for (std::size_t b = 0; b < actions.size(); ++b) {
    actions[b] = action_of(plan, rank_, BlockId(static_cast<BlockId::rep>(b)));
  }
  predicted_peak_bytes_ = predicted_peak(steer(actions));
}

bool MemoryActuator::make_room(double growth, RoomUntil until) {
  if (predicted_peak_bytes_ == 0) return false;
  const auto base = static_cast<double>(measured_.problem.base_bytes);
  const auto most = static_cast<double>(budget_bytes(measured_.limit_bytes));
  const auto fits = [&](std::int64_t peak) {
    return base + growth * (static_cast<double>(peak) - base) <= most;
  };
  if (fits(predicted_peak_bytes_)) return false;
  if (!front_) {
    auto facts = planner::memory_facts({measured_}, blocks_.size());
    if (!facts.ok()) return false;
    front_ = std::move(facts->models.front().front);
  }
  // From the least memory to the least time.
  std::size_t points = front_->size();
  while (points > 0 && !fits((*front_)[points - 1].peak_bytes)) --points;
  const std::vector<MemoryAction> actions =
      points > 0 ? (*front_)[points - 1].actions : least_held(measured_.problem, blocks_.size());
  if (actions == asked_) return false;
  steer(actions);
  if (until == RoomUntil::next_step) followed_.reset();
  return true;
}

Seconds MemoryActuator::spent() const {
  Seconds all(0);
  if (const VisitWatch* visits = blocks_.visits()) all += visits->parts().region.replayed();
  if (offloader_) all += std::chrono::nanoseconds(offloader_->counts().waited_ns);
  return all;
}

// A part of the phase is at most as long as the phase. A step without times has neither part.
void MemoryActuator::sign(RankSignal& signal) const {
  const float backward = signal.phase_seconds[static_cast<std::size_t>(Phase::backward)];
  signal.recompute_seconds = std::min(backward, static_cast<float>(spent_in_step_.count()));
}

void MemoryActuator::end_step(const StepEnd& step, StepOutput& output) {
  spent_in_step_ = std::max(Seconds(0), spent() - spent_before_);
  if (output.row == nullptr) return;
  const float backward = output.row->phase_seconds[static_cast<std::size_t>(Phase::backward)];
  output.row->recompute_seconds = std::min(backward, static_cast<float>(spent_in_step_.count()));
  output.row->predicted_peak_bytes = predicted_peak_with(step.samples);
  for (std::size_t b = 0; b < step.plan.precision.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    const MemoryAction action = action_of(step.plan, step.rank, block);
    if (is_recompute(action)) ++output.row->recomputed_blocks;
    if (action == MemoryAction::offload) ++output.row->offloaded_blocks;
    if (action == MemoryAction::tile) ++output.row->tiled_blocks;
  }
}

Fragment MemoryActuator::failure_of(std::size_t block, std::string_view reason) const {
  BlockFailure failure;
  failure.block = BlockId(static_cast<BlockId::rep>(block));
  failure.blocks = static_cast<std::uint16_t>(blocks_.size());
  failure.action = asked_[block];
  const std::size_t length = std::min(reason.size(), failure.what.size() - 1);
  std::copy_n(reason.begin(), length, failure.what.begin());
  return make_fragment(failure);
}

Fragment MemoryActuator::next_fragment() {
  for (const PinnedBlock& pinned : blocks_.pinned()) {
    const std::size_t b = pinned.block.value();
    if (!asked_.empty() && asked_[b] != MemoryAction::keep) return failure_of(b, pinned.reason);
  }
  if (!is_without_tier_) return {};
  const auto offloaded = std::ranges::find(asked_, MemoryAction::offload);
  if (offloaded == asked_.end()) return {};
  return failure_of(static_cast<std::size_t>(offloaded - asked_.begin()),
                    "the offload tier failed");
}

}  // namespace cox::detail
