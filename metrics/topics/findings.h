// The topic Findings: what the newest steps lost, why, and what to change. Its part of the snapshot
// is a FindingsView, replaced after each look of the FindingsWatch. Plain values; pure.
#pragma once

namespace cox::metrics {

struct Topic;

Topic findings_topic();

}  // namespace cox::metrics
