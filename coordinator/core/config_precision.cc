#include <array>
#include <optional>
#include <string>

#include "coordinator/core/config_rows.h"
#include "coordinator/core/precision_values.h"

namespace cox::config_rows {
namespace {

constexpr std::array<std::string_view, 2> kScalings = {"delayed", "current"};
constexpr std::array<std::string_view, 2> kGranularities = {"tensor", "row"};
constexpr values::IntegerRange kRounds = {0, 1000000};
constexpr values::NumberRange kRatio = {0, 1};

std::string format_format(const std::optional<Precision>& precision) {
  return values::format(precision);
}

std::string format_rules(const std::vector<PrecisionRule>& rules) {
  return values::format(rules);
}

template <class Field>
ConfigRow rules(const Words& words, Field field) {
  return parsed(words, "formats", "BLOCK=fp32|bf16|fp16|fp8,...", values::parse_precision_rules,
                format_rules, field);
}

void add_formats(std::vector<ConfigRow>& t) {
  t.push_back(auto_mode({"precision.mode", "", "chooses formats; auto = on if any is asked for"},
                        COX_FIELD(precision.mode)));
  t.push_back(parsed({"precision.format", "", "of all blocks; auto = of each by its signals"},
                     "choice", "auto|" + values::join(kPrecisionNames), values::parse_format,
                     format_format, COX_FIELD(precision.format)));
  t.push_back(rules({"precision.force", "", "formats that blocks must have; * is any text"},
                    COX_FIELD(precision.force)));
  t.push_back(rules({"precision.forbid", "", "formats that blocks must not have; * is any text"},
                    COX_FIELD(precision.forbid)));
  t.push_back(flag({"precision.emulate", "", "auto may take formats that are only imitated here"},
                   COX_FIELD(precision.emulate)));
}

void add_patience(std::vector<ConfigRow>& t) {
  t.push_back(integer({"precision.patience_rounds", "rounds", "good signals before 8 bits"},
                      {1, kRounds.max}, COX_FIELD(precision.patience_rounds)));
  t.push_back(integer({"precision.dwell_rounds", "rounds", "a block keeps a format that long"},
                      kRounds, COX_FIELD(precision.dwell_rounds)));
  t.push_back(integer({"precision.cooldown_rounds", "rounds", "no lower format after trouble"},
                      kRounds, COX_FIELD(precision.cooldown_rounds)));
}

void add_bands(std::vector<ConfigRow>& t) {
  t.push_back(number({"precision.enter_noise_ratio", "ratio",
                      "gradient noise over signal from which 8 bits may be used"},
                     {0, 1e6}, COX_FIELD(precision.enter_noise_ratio)));
  t.push_back(number({"precision.leave_noise_ratio", "ratio", "... and below which they are left"},
                     {0, 1e6}, COX_FIELD(precision.leave_noise_ratio)));
  t.push_back(number({"precision.enter_underflow_ratio", "ratio",
                      "part flushed to zero up to which a lower format may be used"},
                     kRatio, COX_FIELD(precision.enter_underflow_ratio)));
  t.push_back(number({"precision.leave_underflow_ratio", "ratio", "... and above which it is left"},
                     kRatio, COX_FIELD(precision.leave_underflow_ratio)));
  t.push_back(number(
      {"precision.leave_saturated_ratio", "ratio", "part clipped by fp8 above which it is left"},
      kRatio, COX_FIELD(precision.leave_saturated_ratio)));
  t.push_back(number(
      {"precision.smallest_gain_ratio", "ratio", "a format must be that much faster to be taken"},
      kRatio, COX_FIELD(precision.smallest_gain_ratio)));
}

void add_fp8(std::vector<ConfigRow>& t) {
  t.push_back(choice({"precision.fp8_scaling", "", "from the amax of past steps, or of this one"},
                     "choice", kScalings, COX_FIELD(precision.fp8_scaling)));
  t.push_back(choice({"precision.fp8_granularity", "", "one scale a tensor, or one a row"},
                     "choice", kGranularities, COX_FIELD(precision.fp8_granularity)));
  t.push_back(integer({"precision.fp8_history", "steps", "whose amax counts in delayed scaling"},
                      {1, 65536}, COX_FIELD(precision.fp8_history)));
  t.push_back(integer({"precision.fp8_margin", "bits", "headroom of scales"}, {0, 16},
                      COX_FIELD(precision.fp8_margin)));
}

void add_sampling(std::vector<ConfigRow>& t) {
  t.push_back(integer({"precision.sample_every", "steps", "between samples of values; 0 = none"},
                      kRounds, COX_FIELD(precision.sample_every)));
  t.push_back(words_of({"precision.sample_blocks", "", "which blocks; * is any text"},
                       COX_FIELD(precision.sample_blocks)));
  t.push_back(integer({"precision.curvature_every", "steps", "between its probes; 0 = none"},
                      kRounds, COX_FIELD(precision.curvature_every)));
}

}  // namespace

void add_precision(std::vector<ConfigRow>& t) {
  add_formats(t);
  add_patience(t);
  add_bands(t);
  add_fp8(t);
  add_sampling(t);
}

void add_loss_scale(std::vector<ConfigRow>& t) {
  t.push_back(choice({"loss_scale.mode", "", "fits the rules of the scaler to what it sees"},
                     "mode", values::kModeNames, COX_FIELD(loss_scale.mode)));
  t.push_back(number({"loss_scale.initial", "", "scale of fp16 gradients at the start"},
                     {1e-30, 1e30}, COX_FIELD(loss_scale.rules.initial_scale)));
  t.push_back(number({"loss_scale.growth_factor", "factor", "of one growth"}, {1, 65536},
                     COX_FIELD(loss_scale.rules.growth_factor)));
  t.push_back(number({"loss_scale.backoff_factor", "factor", "of one backoff"}, {0.0001, 0.9999},
                     COX_FIELD(loss_scale.rules.backoff_factor)));
  t.push_back(integer({"loss_scale.growth_interval", "steps", "clean ones before a growth"},
                      {1, 1000000000}, COX_FIELD(loss_scale.rules.growth_interval)));
  t.push_back(number({"loss_scale.min", "", "least scale"}, {0, 1e30},
                     COX_FIELD(loss_scale.rules.min_scale)));
  t.push_back(number({"loss_scale.max", "", "largest scale"}, {1e-30, 1e30},
                     COX_FIELD(loss_scale.rules.max_scale)));
  t.push_back(integer({"loss_scale.hysteresis", "overflows", "in a row before the first backoff"},
                      {1, 1000}, COX_FIELD(loss_scale.rules.hysteresis)));
  t.push_back(integer({"loss_scale.headroom_bits", "bits",
                       "kept free above the largest gradients; 0 = none, as torch's GradScaler"},
                      {0, 15}, COX_FIELD(loss_scale.rules.headroom_bits)));
}

}  // namespace cox::config_rows
