#include "sdk/src/session/precision_steering.h"

#include <algorithm>
#include <string>

#include "coordinator/core/settings/settings.h"
#include "coxswain/precision.h"

namespace cox::detail {
namespace {

constexpr int kTimedRuns = 3;
constexpr std::int64_t kHopeless = 3;  // times as slow as fp32: one run tells enough

std::string text_of(const PrecisionRule& rule) {
  return rule.pattern + "=" + std::string(to_string(rule.format));
}

}  // namespace

PrecisionSteering::PrecisionSteering(const Config& config, BlockWatch& blocks)
    : config_(config.precision),
      blocks_(blocks),
      is_wanted_(config.precision.mode ? *config.precision.mode != PolicyMode::off
                                       : wants_precision(config.precision)),
      is_steered_(is_wanted_ && config.precision.mode != PolicyMode::observe) {}

Status PrecisionSteering::check(at::DeviceType device) {
  if (Status status = check_rules(config_.force, "precision.force"); !status.ok()) return status;
  if (Status status = check_rules(config_.forbid, "precision.forbid"); !status.ok()) return status;
  if (!is_wanted_ || blocks_.size() == 0) return ok_status();
  formats_ = runnable_formats(device) | only(Precision::fp32);
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    const auto format = static_cast<Precision>(p);
    if (contains(formats_, format) && is_emulated(format, device)) emulated_ |= only(format);
  }
  return check_formats(device);
}

Status PrecisionSteering::check_rules(std::span<const PrecisionRule> rules, const char* key) const {
  const std::vector<std::string> names = blocks_.names();
  for (const PrecisionRule& rule : rules) {
    const bool fits = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return fits_pattern(rule.pattern, name);
    });
    if (fits) continue;
    return invalid_argument(std::string(key) + ": expected the name of a block, found " +
                            text_of(rule) + ", which fits none of " + std::to_string(names.size()) +
                            (names.empty() ? " blocks" : " blocks, such as " + names.front()));
  }
  return ok_status();
}

Status PrecisionSteering::check_formats(at::DeviceType device) const {
  if (config_.format) {
    const Status status = can_run(*config_.format, device);
    if (!status.ok()) return status.with_context("precision.format");
  }
  for (const PrecisionRule& rule : config_.force) {
    const Status status = can_run(rule.format, device);
    if (!status.ok()) return status.with_context("precision.force " + text_of(rule));
  }
  return ok_status();
}

// Compared by content: the first plan is decided anew, under its old number, once formats are
// measured.
void PrecisionSteering::follow(const Plan& plan) {
  if (!is_steered_) return;
  rules_ = plan.scaler;
  if (followed_ != plan.precision) {
    followed_ = plan.precision;
    blocks_.set_precision(followed_);
  }
  const bool was_scaling = is_scaling_;
  is_scaling_ = std::find(followed_.begin(), followed_.end(), Precision::fp16) != followed_.end();
  if (!is_scaling_ || was_scaling) return;
  if (!scaler_) scaler_ = initial_state(rules_);
  // It may come from a save of a run with other bounds.
  scaler_->scale = std::clamp(scaler_->scale, rules_.min_scale, rules_.max_scale);
}

void PrecisionSteering::advance_scaler(const ScalerStep& step) {
  if (is_scaling_) scaler_ = advance(*scaler_, rules_, step);
}

void PrecisionSteering::roll_back(const std::optional<ScalerState>& state) {
  if (!state) return;  // fp16 came later
  const float most = scaler_ ? scaler_->scale : state->scale;
  scaler_ = state;
  scaler_->scale = std::min(scaler_->scale, most);
}

Result<PrecisionFacts> PrecisionSteering::measure(const std::function<Status()>& step) {
  PrecisionFacts facts;
  facts.emulated = emulated_;
  facts.blocks.assign(blocks_.size(), {});
  Status status;
  for (std::size_t p = 0; p < kPrecisions && status.ok(); ++p) {
    if (!contains(formats_, static_cast<Precision>(p))) continue;
    blocks_.set_precision(std::vector<Precision>(blocks_.size(), static_cast<Precision>(p)));
    status = measure_format(p, step, facts);
  }
  if (is_steered_) {
    blocks_.set_precision(followed_);
  } else {
    blocks_.release_precision();
  }
  return status.ok() ? Result<PrecisionFacts>(std::move(facts)) : status;
}

Status PrecisionSteering::measure_format(std::size_t format, const std::function<Status()>& step,
                                         PrecisionFacts& facts) {
  std::int64_t first_us = 0;
  for (int run = 0; run <= kTimedRuns; ++run) {
    const auto times = blocks_.timed(step);
    if (!times.ok()) return times.status();
    std::int64_t run_us = 0;
    for (std::size_t b = 0; b < times->size(); ++b) {
      std::int64_t& best = facts.blocks[b].step_us[format];
      const std::int64_t us = std::max<std::int64_t>(1, (*times)[b]);
      best = run == 0 ? us : std::min(best, us);
      run_us += us;
    }
    if (run == 0) first_us = run_us;
    std::int64_t fp32_us = 0;
    for (const BlockFormats& block : facts.blocks) fp32_us += block.step_us[0];
    if (format > 0 && first_us > kHopeless * fp32_us) break;
  }
  return ok_status();
}

}  // namespace cox::detail
