// How the values of `precision.*` are read from text and written back, both ways exact. Pure
// functions; errors are invalid_argument.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/precision_config.h"
#include "coordinator/core/status.h"

namespace cox::config_values {

// "auto" is an empty one.
Result<std::optional<Precision>> parse_format(std::string_view text);
std::string format(const std::optional<Precision>& precision);

// "encoder.*=bf16,head=fp32".
Result<std::vector<PrecisionRule>> parse_precision_rules(std::string_view text);
std::string format(const std::vector<PrecisionRule>& rules);

}  // namespace cox::config_values
