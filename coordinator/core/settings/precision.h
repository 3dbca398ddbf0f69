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
  std::vector<FormatRule> force;       // the last one that fits a block counts
  std::vector<FormatRule> forbid;      // fp32 cannot be forbidden
  bool emulate = false;                // `auto` may choose formats that the device only imitates
  std::uint32_t patience_rounds = 16;  // rounds of good signals before 8 bits
  std::uint32_t dwell_rounds = 200;  // least distance of two changes of a block, except in trouble
  std::uint32_t cooldown_rounds = 200;   // rest after trouble; twice as long each time
  double enter_noise_ratio = 1.0;        // 8 bits from this gradient noise over signal on ...
  double leave_noise_ratio = 0.25;       // ... until it falls below this
  double enter_underflow_ratio = 0.05;   // most sampled values flushed to zero in a new format ...
  double leave_underflow_ratio = 0.15;   // ... and in the present one
  double leave_saturated_ratio = 0.001;  // most sampled values clipped in FP8
  double smallest_gain_ratio = 0.02;     // a new format must save this part of a block's time

  // Read by the SDK.
  Fp8Scaling fp8_scaling = Fp8Scaling::current;             // by this step's amax, or past ones
  Fp8Granularity fp8_granularity = Fp8Granularity::tensor;  // one scale a tensor, or one a row
  std::uint32_t fp8_history = 16;   // steps whose amax counts, with delayed scaling
  std::uint32_t fp8_margin = 0;     // bits of headroom, 0 .. 16
  std::uint32_t sample_every = 8;   // steps between samples of gradients; 0 = none
  std::string sample_blocks = "*";  // pattern of the sampled blocks; '*' is any text
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
