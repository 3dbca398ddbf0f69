// How the maps of `shares.*` are read from text and written back, both ways exact: "RANK=VALUE"
// between commas, in any order; written in ascending ranks. Pure functions; errors are
// invalid_argument.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::config_values {

inline constexpr double kLeastSpeed = 0.001;
inline constexpr double kMostSpeed = 1000;
inline constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 31;

// "1=2,3=0.5": speeds relative to ranks that are not named.
Result<std::map<std::int32_t, double>> parse_speeds(std::string_view text);
std::string format(const std::map<std::int32_t, double>& speeds);

// "0=512": samples.
Result<std::map<std::int32_t, std::uint64_t>> parse_samples(std::string_view text);
std::string format(const std::map<std::int32_t, std::uint64_t>& samples);

}  // namespace cox::config_values
