// The body of /metrics: one snapshot in the Prometheus text format, row by row of the catalogue.
// Everything in it belongs to the same round, and the number of series does not depend on the
// number of ranks. Pure; any thread.
#pragma once

#include <string>

#include "metrics/snapshot.h"

namespace cox::metrics {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

std::string exposition(const Snapshot& snapshot);

}  // namespace cox::metrics
