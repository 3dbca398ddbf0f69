#include "coordinator/core/precision_config.h"

#include <algorithm>
#include <string>

#include "coordinator/core/memory_config.h"

namespace cox {
namespace {

std::string text_of(const PrecisionRule& rule) {
  return rule.pattern + "=" + std::string(to_string(rule.format));
}

}  // namespace

bool wants_precision(const PrecisionConfig& config) {
  return config.format != Precision::fp32 || !config.force.empty();
}

const PrecisionRule* forcing_rule(const PrecisionConfig& config, std::string_view block) {
  const auto last = std::find_if(
      config.force.rbegin(), config.force.rend(),
      [block](const PrecisionRule& rule) { return fits_pattern(rule.pattern, block); });
  return last == config.force.rend() ? nullptr : &*last;
}

PrecisionSet allowed_formats(const PrecisionConfig& config, std::string_view block) {
  if (const PrecisionRule* rule = forcing_rule(config, block)) return only(rule->format);
  PrecisionSet set = (1u << kPrecisions) - 1;
  for (const PrecisionRule& rule : config.forbid) {
    if (fits_pattern(rule.pattern, block)) set &= static_cast<PrecisionSet>(~only(rule.format));
  }
  return set;
}

Status validate(const PrecisionConfig& config) {
  for (const PrecisionRule& rule : config.forbid) {
    if (rule.format == Precision::fp32) {
      return invalid_argument("precision.forbid has " + text_of(rule) +
                              ", but fp32 is always possible; force another format instead");
    }
    if (std::find(config.force.begin(), config.force.end(), rule) != config.force.end()) {
      return invalid_argument("precision.force and precision.forbid both have " + text_of(rule) +
                              "; take it out of one of them");
    }
  }
  if (config.leave_noise_ratio > config.enter_noise_ratio) {
    return invalid_argument(
        "precision.leave_noise_ratio: expected at most precision.enter_noise_ratio, so that a "
        "block does not flip between both");
  }
  if (config.leave_underflow_ratio < config.enter_underflow_ratio) {
    return invalid_argument(
        "precision.leave_underflow_ratio: expected at least precision.enter_underflow_ratio, so "
        "that a block does not flip between both");
  }
  return ok_status();
}

Status validate(const LossScaleConfig& config) {
  const Status status = validate(config.rules);
  return status.ok() ? status : status.with_context("loss_scale");
}

}  // namespace cox
