// The topic Findings: what the newest steps lost, why, and what to change. Its part of the snapshot
// is a FindingsView, replaced after each look of the FindingsWatch. Plain values; pure.
#pragma once

#include <string>

#include "metrics/analysis/findings/finding.h"
#include "metrics/topic.h"

namespace cox::metrics {

Topic findings_topic();

// Returns the label of a finding, on all pages.
Record severity_tag(diagnosis::Severity severity);

}  // namespace cox::metrics
