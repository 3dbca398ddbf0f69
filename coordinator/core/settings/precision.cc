#include "coordinator/core/settings/precision.h"

#include <algorithm>

#include "coordinator/core/settings/settings.h"

namespace cox {
namespace {

using namespace settings;

constexpr std::string_view kScalings[] = {"delayed", "current"};
constexpr std::string_view kGranularities[] = {"tensor", "row"};
constexpr IntegerRange kRounds = {0, 1000000};
constexpr NumberRange kRatio = {0, 1};

Setting<PrecisionConfig> formats(std::vector<FormatRule> PrecisionConfig::*field,
                                 SettingName name) {
  return rules(field, std::move(name), "formats", "BLOCK=FORMAT", kPrecisionNames);
}

template <class Row>
Setting<LossScaleConfig> rule(Row row) {
  return within(&LossScaleConfig::rules, std::move(row));
}

}  // namespace

std::vector<Setting<PrecisionConfig>> precision_settings() {
  using C = PrecisionConfig;
  return {
      auto_mode(&C::mode,
                {"mode", "", "chooses formats; auto = on if format is not fp32 or force is set"},
                wants_precision),
      auto_choice(
          &C::format,
          {"format", "", "format of all blocks; auto = chosen for each block by its signals"},
          kPrecisionNames),
      formats(&C::force, {"force", "", "formats that blocks must have; * is any text"}),
      formats(&C::forbid, {"forbid", "", "formats that blocks must not have; * is any text"}),
      flag(&C::emulate, {"emulate", "", "auto may choose formats that the devices only imitate"}),
      integer(&C::patience_rounds,
              {"patience_rounds", "rounds", "rounds of good signals before 8 bits"},
              {1, kRounds.max}),
      integer(&C::dwell_rounds, {"dwell_rounds", "rounds", "a block keeps a format that long"},
              kRounds),
      integer(&C::cooldown_rounds, {"cooldown_rounds", "rounds", "no lower format after trouble"},
              kRounds),
      number(&C::enter_noise_ratio,
             {"enter_noise_ratio", "ratio",
              "gradient noise over signal from which 8 bits may be used"},
             {0, 1e6}),
      number(
          &C::leave_noise_ratio,
          {"leave_noise_ratio", "ratio", "gradient noise over signal below which 8 bits are left"},
          {0, 1e6}),
      number(&C::enter_underflow_ratio,
             {"enter_underflow_ratio", "ratio",
              "part flushed to zero up to which a lower format may be used"},
             kRatio),
      number(&C::leave_underflow_ratio,
             {"leave_underflow_ratio", "ratio",
              "part flushed to zero above which a lower format is left"},
             kRatio),
      number(&C::leave_saturated_ratio,
             {"leave_saturated_ratio", "ratio", "part clipped by fp8 above which it is left"},
             kRatio),
      number(&C::smallest_gain_ratio,
             {"smallest_gain_ratio", "ratio", "a format must be that much faster to be chosen"},
             kRatio),
      choice(&C::fp8_scaling,
             {"fp8_scaling", "", "scales follow the amax of past steps, or of this one"},
             kScalings),
      choice(&C::fp8_granularity, {"fp8_granularity", "", "one scale a tensor, or one a row"},
             kGranularities),
      integer(&C::fp8_history,
              {"fp8_history", "steps", "steps whose amax counts in delayed scaling"}, {1, 65536}),
      integer(&C::fp8_margin, {"fp8_margin", "bits", "kept free above the largest value"}, {0, 16}),
      integer(&C::sample_every,
              {"sample_every", "steps", "steps between samples of values; 0 = none"}, kRounds),
      text(&C::sample_blocks,
           {"sample_blocks", "", "blocks whose values are sampled; * is any text"}),
  };
}

std::vector<Setting<LossScaleConfig>> loss_scale_settings() {
  using R = ScalerRules;
  return {
      mode(&LossScaleConfig::mode,
           {"mode", "", "adjusts the scaler's rules to the gradients and overflows"}),
      rule(number(&R::initial_scale, {"initial", "", "scale of fp16 gradients at the start"},
                  {1e-30, 1e30})),
      rule(number(&R::growth_factor, {"growth_factor", "factor", "of one growth"}, {1, 65536})),
      rule(number(&R::backoff_factor, {"backoff_factor", "factor", "of one backoff"},
                  {0.0001, 0.9999})),
      rule(integer(&R::growth_interval, {"growth_interval", "steps", "clean ones before a growth"},
                   {1, 1000000000})),
      rule(number(&R::min_scale, {"min", "", "least scale"}, {0, 1e30})),
      rule(number(&R::max_scale, {"max", "", "largest scale"}, {1e-30, 1e30})),
      rule(integer(&R::hysteresis, {"hysteresis", "overflows", "in a row before the first backoff"},
                   {1, 1000})),
      rule(integer(&R::headroom_bits,
                   {"headroom_bits", "bits",
                    "kept free above the largest gradients; 0 = none, as torch's GradScaler"},
                   {0, 15})),
  };
}

Status validate(const PrecisionConfig& config) {
  if (Status status =
          check_rules("precision", config.force, config.forbid, Precision::fp32, "format");
      !status.ok()) {
    return status;
  }
  if (config.leave_noise_ratio > config.enter_noise_ratio) {
    return invalid_argument(
        "precision.leave_noise_ratio: expected at most precision.enter_noise_ratio, so that a "
        "block does not switch back and forth");
  }
  if (config.leave_underflow_ratio < config.enter_underflow_ratio) {
    return invalid_argument(
        "precision.leave_underflow_ratio: expected at least precision.enter_underflow_ratio, so "
        "that a block does not switch back and forth");
  }
  return ok_status();
}

Status validate(const LossScaleConfig& config) {
  return validate(config.rules).with_context("loss_scale");
}

bool wants_precision(const PrecisionConfig& config) {
  return config.format != Precision::fp32 || !config.force.empty();
}

PrecisionSet allowed_formats(const PrecisionConfig& config, std::string_view block) {
  if (const FormatRule* rule = forcing_rule(config, block)) return only(rule->value);
  PrecisionSet set = (1u << kPrecisions) - 1;
  for (const FormatRule& rule : config.forbid) {
    if (fits_pattern(rule.pattern, block)) set &= static_cast<PrecisionSet>(~only(rule.value));
  }
  return set;
}

const FormatRule* forcing_rule(const PrecisionConfig& config, std::string_view block) {
  return last_fitting(config.force, block);
}

}  // namespace cox
