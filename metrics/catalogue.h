// The catalogue: every topic that telemetry shows, and every metric that Coxswain exports, one row
// each. The routes, the pages, TelemetryState and docs/metrics.md follow from these lists. Built
// once on request; safe to call from any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "metrics/topic.h"

namespace cox::metrics {

// Returns every topic, in the order of the page, the JSON documents, the exposition and
// docs/metrics.md. A view follows a round after those of the topics before it.
const std::vector<Topic>& topics();

// Returns all rows, in the order of the exposition and of the page.
const std::vector<Metric>& catalogue();

// Returns the body of /metrics: the catalogue in the Prometheus text format 0.0.4, row by row
// (exposition.cc). It is written straight into one string, tens of nanoseconds a series, because a
// scrape runs beside training. Everything in it belongs to the same round, and the number of series
// does not depend on the number of ranks. A value that is not finite is left out: a scraper sees no
// series, not NaN, which would poison sums. Each row has its HELP and TYPE lines, also where it has
// no series. Whole numbers up to 2^53 are exact, others have 15 digits.
std::string exposition(const Snapshot& snapshot);
// The same of other rows.
std::string exposition(std::span<const Metric> rows, const Snapshot& snapshot);
inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// Returns the Markdown page docs/metrics.md.
std::string catalogue_page();

}  // namespace cox::metrics
