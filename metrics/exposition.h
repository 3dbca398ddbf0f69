// The body of /metrics: one Snapshot in the Prometheus text format 0.0.4, the last stage before a
// scraper. It is written straight into one string, tens of nanoseconds a series, because a scrape
// runs beside training. Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "metrics/catalogue.h"

namespace cox::metrics {

// Returns the catalogue, row by row. Everything in it belongs to the same round, and the number of
// series does not depend on the number of ranks. A value that is not finite is left out: a scraper
// sees no series, not NaN, which would poison sums. Each row has its HELP and TYPE lines, also
// where it has no series. Whole numbers up to 2^53 are exact, others have 15 digits.
std::string exposition(const Snapshot& snapshot);
// The same of other rows.
std::string exposition(std::span<const Metric> rows, const Snapshot& snapshot);

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace cox::metrics
