// The settings `precision.*` and `loss_scale.*`. Read before the first round (SDK: which formats
// are tried, how FP8 scales its operands) and by the policies `precision` and `loss_scale` in every
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
  std::optional<PolicyMode> mode;  // empty = on where anything below asks for it, else off
  // The format of all blocks. Empty means "auto": the policy chooses each block's format by its
  // signals.
  std::optional<Precision> format = Precision::fp32;
  std::vector<FormatRule> force;        // of several that fit, the last one counts
  std::vector<FormatRule> forbid;       // fp32 cannot be forbidden
  bool emulate = false;                 // `auto` may take formats that this device only imitates
  std::uint32_t patience_rounds = 16;   // signals must be good for that long before a lower format
  std::uint32_t dwell_rounds = 200;     // between two changes of a block, trouble aside
  std::uint32_t cooldown_rounds = 200;  // after trouble, before a lower format is tried again
  double enter_noise_ratio = 1.0;       // gradient noise over signal that allows 8 bits ...
  double leave_noise_ratio = 0.25;      // ... and below which they are left
  double enter_underflow_ratio = 0.05;  // of the values looked at: flushed to zero
  double leave_underflow_ratio = 0.15;
  double leave_saturated_ratio = 0.001;  // of the values looked at: clipped by FP8
  double smallest_gain_ratio = 0.02;     // a format must be that much faster

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
  PolicyMode mode = PolicyMode::on;  // of the policy; the scaler itself works wherever fp16 does
  ScalerRules rules{};               // what a job starts with
};
std::vector<Setting<LossScaleConfig>> loss_scale_settings();

// Returns invalid_argument for settings that contradict each other.
Status validate(const PrecisionConfig& config);
Status validate(const LossScaleConfig& config);

// Returns whether blocks may run in anything but fp32.
bool wants_precision(const PrecisionConfig& config);

// Returns what a block may run in: one format where it is forced, else fp32 and all that is not
// forbidden.
PrecisionSet allowed_formats(const PrecisionConfig& config, std::string_view block);

// Returns the rule that forces a format on the block; null = none. Owned by `config`.
const FormatRule* forcing_rule(const PrecisionConfig& config, std::string_view block);

}  // namespace cox
