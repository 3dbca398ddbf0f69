// The body of /metrics: one snapshot in the Prometheus text format. Pure; any thread.
#pragma once

#include <string>

#include "metrics/build_info.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

std::string exposition(const Snapshot& snapshot, const BuildInfo& build);

}  // namespace cox::metrics
