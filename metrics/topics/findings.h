// The topic Findings: the losses of the newest steps, their causes, and the remedies. The topic's
// view is a FindingsView, which the FindingsWatch replaces after each analysis. Plain values; pure.
#pragma once

#include <string>

#include "metrics/analysis/findings/finding.h"
#include "metrics/topic.h"

namespace cox::metrics {

Topic findings_topic();

// Returns the label of a finding, on all pages.
Record severity_tag(diagnosis::Severity severity);

}  // namespace cox::metrics
