// The settings `precision.*` and `loss_scale.*`. The SDK reads the settings before the first round
// (formats to try, scaling of FP8 operands), and the policies `precision` and `loss_scale` in every
// round. Part of Config; see settings.h for the rows. Plain values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/loss_scale.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox {

using FormatRule = BlockRule<Precision>;

enum class Fp8Scaling : std::uint8_t { delayed = 0, current = 1 };
enum class Fp8Granularity : std::uint8_t { tensor = 0, row = 1 };

struct PrecisionConfig {
  // Read by policy `precision`.
  std::optional<PolicyMode> mode;  // empty = on if a setting below needs it, else off
  // The format of all blocks. Empty means "auto": the policy chooses each block's format by its
  // signals.
  std::optional<Precision> format = Precision::fp32;
  std::vector<FormatRule> force;        // the last one that fits a block counts
  std::vector<FormatRule> forbid;       // fp32 cannot be forbidden
  bool emulate = false;                 // `auto` may choose formats that the device only imitates
  std::uint32_t patience_rounds = 16;   // of good signals before a lower format
  std::uint32_t dwell_rounds = 200;     // between two changes of a block, except in trouble
  std::uint32_t cooldown_rounds = 200;  // after trouble, before a lower format is tried again
  double enter_noise_ratio = 1.0;       // gradient noise over signal that allows 8 bits ...
  double leave_noise_ratio = 0.25;      // ... and below which 8 bits end
  double enter_underflow_ratio = 0.05;  // of the sampled values: flushed to zero
  double leave_underflow_ratio = 0.15;
  double leave_saturated_ratio = 0.001;  // of the sampled values: clipped by FP8
  double smallest_gain_ratio = 0.02;     // least gain in time of a format

  // Read by the SDK.
  Fp8Scaling fp8_scaling = Fp8Scaling::current;
  Fp8Granularity fp8_granularity = Fp8Granularity::tensor;
  std::uint32_t fp8_history = 16;  // steps whose amax counts, with delayed scaling
  std::uint32_t fp8_margin = 0;    // bits of headroom, 0 .. 16
  std::uint32_t sample_every = 8;  // steps between samples of gradients; 0 = none
  std::string sample_blocks = "*";
};
std::vector<Setting<PrecisionConfig>> precision_settings();

struct LossScaleConfig {
  PolicyMode mode = PolicyMode::on;  // of the policy; the scaler itself works with any fp16
  ScalerRules rules{};               // at the start of a job
};
std::vector<Setting<LossScaleConfig>> loss_scale_settings();

// Returns invalid_argument for settings that contradict each other.
Status validate(const PrecisionConfig& config);
Status validate(const LossScaleConfig& config);

// Returns whether blocks may run in another format than fp32.
bool wants_precision(const PrecisionConfig& config);

// Returns the formats allowed for a block: a forced one alone, else fp32 and all that are not
// forbidden.
PrecisionSet allowed_formats(const PrecisionConfig& config, std::string_view block);

// Returns the rule that forces a format on the block; null = none. Owned by `config`.
const FormatRule* forcing_rule(const PrecisionConfig& config, std::string_view block);

}  // namespace cox
