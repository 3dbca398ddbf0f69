#include "coordinator/core/precision_values.h"

#include "coordinator/core/config_values.h"

namespace cox::config_values {

Result<std::optional<Precision>> parse_format(std::string_view text) {
  std::optional<Precision> precision;
  if (text == "auto") return precision;
  const Result<std::size_t> index = parse_name(text, kPrecisionNames);
  if (!index.ok()) {
    return invalid_argument("expected auto or one of " + join(kPrecisionNames) + ", found '" +
                            std::string(text) + "'");
  }
  precision = static_cast<Precision>(*index);
  return precision;
}

std::string format(const std::optional<Precision>& precision) {
  return precision ? std::string(to_string(*precision)) : "auto";
}

Result<std::vector<PrecisionRule>> parse_precision_rules(std::string_view text) {
  const Result<std::vector<std::string_view>> parts = parse_parts(text);
  if (!parts.ok()) return parts.status();
  std::vector<PrecisionRule> rules;
  for (const std::string_view part : *parts) {
    const std::size_t equals = part.rfind('=');
    if (equals == std::string_view::npos || trim(part.substr(0, equals)).empty()) {
      return invalid_argument("expected BLOCK=FORMAT, found '" + std::string(part) + "'");
    }
    const Result<std::size_t> index = parse_name(trim(part.substr(equals + 1)), kPrecisionNames);
    if (!index.ok()) return index.status();
    rules.push_back({std::string(trim(part.substr(0, equals))), static_cast<Precision>(*index)});
  }
  return rules;
}

std::string format(const std::vector<PrecisionRule>& rules) {
  std::string out;
  for (const PrecisionRule& rule : rules) {
    out += (out.empty() ? "" : ",") + rule.pattern + "=" + std::string(to_string(rule.format));
  }
  return out;
}

}  // namespace cox::config_values
