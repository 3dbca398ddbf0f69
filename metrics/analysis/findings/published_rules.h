// The sixteen rules of pytscope 0.2.1 with its codes, thresholds, severities and order, for
// comparison; own_rules.h has better rules. The sentences are ours.
//
//   Figures -> published_findings() -> findings, the severest first
//
// Pure; any thread.
#pragma once

#include <vector>

#include "metrics/analysis/findings/figures.h"
#include "metrics/analysis/findings/finding.h"

namespace cox::diagnosis {

std::vector<Finding> published_findings(const Figures& figures);
std::vector<Finding> published_findings(const Pipeline& pipeline);

}  // namespace cox::diagnosis
