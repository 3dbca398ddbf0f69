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

#include "metrics/analysis/findings/figures.h"
#include "metrics/analysis/findings/finding.h"
#include "metrics/analysis/findings/run_view.h"

namespace cox::diagnosis {

struct OwnInput {
  const RunView* view = nullptr;
  const Budget* budget = nullptr;
  std::optional<KernelTrace> trace;
  std::optional<Pipeline> pipeline{};
};

// Returns every code that own_findings() gives, in the order of docs/diagnosis.md.
std::span<const std::string_view> own_codes();

std::vector<Finding> own_findings(const OwnInput& input);

}  // namespace cox::diagnosis
