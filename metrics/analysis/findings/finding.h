// Finding: one thing that a run lost, why, and what to change; the last stage of the diagnosis.
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

// As published: "high", "med", "low".
inline std::string_view to_string(Severity severity) {
  constexpr std::array<std::string_view, 3> kNames = {"high", "med", "low"};
  return kNames[static_cast<std::size_t>(severity)];
}

// A number that a finding rests on.
struct Evidence {
  std::string name;  // with its unit: "slowdown", "wait_seconds"
  double value = 0;
};

struct Finding {
  std::string code;  // "DIST.STRAGGLER"
  Severity severity = Severity::low;
  std::string title;
  std::string detail{};
  std::string suggestion{};
  // Of our own rules only.
  std::vector<Evidence> evidence{};
  std::vector<std::int32_t> ranks{};     // whom it is about; empty = the run
  std::optional<double> cost_seconds{};  // of wall time, that fixing it would give back
  double cost_share = 0;                 // of wall time
  bool ends_run = false;                 // what comes after it is lost: it stands before all costs
};

// The rules' rate of false alarms: of a thousand runs without a fault, whose steps vary
// independently or resemble the step before by no more than 0.3, at most one gets a finding that
// names a rank.
inline constexpr double kFalseAlarms = 1e-3;
inline constexpr std::size_t kLeastSteps = 10;  // fewer say nothing

}  // namespace cox::diagnosis
