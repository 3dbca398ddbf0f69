// Our own rules: what a run lost, why and what to change. What ends the run comes first, then what
// costs most; one that tells no cost stands where the least cost of its severity would. Codes of
// published_rules.h keep their meaning; what those get wrong is mended here, and there are codes
// for what only our own record has. docs/diagnosis.md lists them.
//
//   RunView -> own_findings() -> findings, what costs most first
//
// A rule that throws or that comes to a number which cannot be is told as RULE.FAILED, and the
// other rules go on. Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/diagnosis/figures.h"
#include "coordinator/diagnosis/finding.h"
#include "coordinator/diagnosis/run_view.h"

namespace cox::diagnosis {

struct OwnInput {
  const RunView* view = nullptr;
  const Budget* budget = nullptr;
  std::optional<KernelTrace> trace;
  std::optional<Pipeline> pipeline{};
};

// What the rules hold to when nothing is wrong: of a thousand runs whose steps vary independently,
// or resemble the one before by no more than 0.3, at most one gets a finding that names a rank.
inline constexpr double kFalseAlarms = 1e-3;
inline constexpr std::size_t kLeastSteps = 10;  // fewer say nothing

// Returns every code that own_findings() gives, in the order of docs/diagnosis.md.
std::span<const std::string_view> own_codes();

std::vector<Finding> own_findings(const OwnInput& input);

}  // namespace cox::diagnosis
