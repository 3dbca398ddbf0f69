#include "coordinator/core/parallel_values.h"

#include <vector>

#include "coordinator/core/config_values.h"
#include "coordinator/core/units.h"

namespace cox::config_values {
namespace {

// `parse` reads one value. A rank may be named once.
template <class Value, class Parse>
Result<std::map<std::int32_t, Value>> parse_by_rank(std::string_view text, Parse parse) {
  const Result<std::vector<std::string_view>> parts = parse_parts(text);
  if (!parts.ok()) return parts.status();
  std::map<std::int32_t, Value> by_rank;
  for (const std::string_view part : *parts) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return invalid_argument("expected RANK=VALUE, found '" + std::string(part) + "'");
    }
    const auto rank = parse_integer(trim(part.substr(0, equals)), {0, kMaxRanks - 1});
    if (!rank.ok()) return rank.status();
    const Result<Value> value = parse(trim(part.substr(equals + 1)));
    if (!value.ok()) return value.status();
    if (!by_rank.emplace(static_cast<std::int32_t>(*rank), *value).second) {
      return invalid_argument("rank " + std::to_string(*rank) + " is named twice");
    }
  }
  return by_rank;
}

template <class Value, class Format>
std::string format_by_rank(const std::map<std::int32_t, Value>& by_rank, Format format_value) {
  std::string out;
  for (const auto& [rank, value] : by_rank) {
    out += (out.empty() ? "" : ",") + std::to_string(rank) + "=" + format_value(value);
  }
  return out;
}

}  // namespace

Result<std::map<std::int32_t, double>> parse_speeds(std::string_view text) {
  return parse_by_rank<double>(text, [](std::string_view value) {
    return parse_number(value, {kLeastSpeed, kMostSpeed});
  });
}

std::string format(const std::map<std::int32_t, double>& speeds) {
  return format_by_rank(speeds, [](double speed) { return format(speed); });
}

Result<std::map<std::int32_t, std::uint64_t>> parse_samples(std::string_view text) {
  return parse_by_rank<std::uint64_t>(text, [](std::string_view value) {
    return parse_integer(value, {0, kMostSamples});
  });
}

std::string format(const std::map<std::int32_t, std::uint64_t>& samples) {
  return format_by_rank(samples, [](std::uint64_t count) { return std::to_string(count); });
}

}  // namespace cox::config_values
