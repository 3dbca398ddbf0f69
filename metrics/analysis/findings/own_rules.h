// Our own rules find losses of a run, their reasons and remedies. Findings sort by cost, after
// those that end the run. A finding without a cost sorts by the least cost of its severity. Codes
// of published_rules.h keep their meaning; our rules correct their errors, and new codes use our
// own record. docs/diagnosis.md lists all codes.
//
//   RunView -> own_findings() -> findings, most costly first
//
// A rule that throws or computes an impossible number becomes a finding RULE.FAILED; the other
// rules go on. Pure; any thread.
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

// Returns every code of own_findings(), in the order of docs/diagnosis.md.
std::span<const std::string_view> own_codes();

std::vector<Finding> own_findings(const OwnInput& input);

}  // namespace cox::diagnosis
