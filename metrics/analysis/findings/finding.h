// Finding is one loss of a run, with its reason and remedy. The last stage of the diagnosis.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cox::diagnosis {

enum class Severity : std::uint8_t { high, medium, low };

// Returns the published names: "high", "med", "low".
inline std::string_view to_string(Severity severity) {
  constexpr std::array<std::string_view, 3> kNames = {"high", "med", "low"};
  return kNames[static_cast<std::size_t>(severity)];
}

// A number in support of a finding.
struct Evidence {
  std::string name;  // with the unit: "slowdown", "wait_seconds"
  double value = 0;
};

struct Finding {
  std::string code;  // "DIST.STRAGGLER"
  Severity severity = Severity::low;
  std::string title;
  std::string detail{};
  std::string suggestion{};
  // Set by our own rules only.
  std::vector<Evidence> evidence{};
  std::vector<std::int32_t> ranks{};     // ranks concerned; empty = the whole run
  std::optional<double> cost_seconds{};  // wall time to win back
  double cost_share = 0;                 // cost_seconds / wall time
  bool ends_run = false;                 // later steps are lost; sorts before all costs
};

// The rules' rate of false alarms. At most one of a thousand runs without a fault gets a finding
// with a rank's name. Condition: steps are independent, or correlate with the step before by at
// most 0.3.
inline constexpr double kFalseAlarms = 1e-3;
inline constexpr std::size_t kLeastSteps = 10;  // rules need as many steps

}  // namespace cox::diagnosis
