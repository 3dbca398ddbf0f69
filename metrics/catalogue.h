// The catalogue lists every topic of telemetry and every metric that Coxswain exports, one row
// each. The routes, the pages, TelemetryState and docs/metrics.md follow from these lists. Built
// once on first use; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "metrics/topic.h"

namespace cox::metrics {

// Returns every topic, in the order of the page, the JSON documents, the exposition and
// docs/metrics.md. Topics process a round in this order.
const std::vector<Topic>& topics();

// Returns all rows, in the order of the exposition and of the page.
const std::vector<Metric>& catalogue();

// Returns the body of /metrics: the catalogue in the Prometheus text format 0.0.4, row by row
// (exposition.cc). All values belong to the same round; the number of series does not depend on the
// number of ranks. Leaves out values that are not finite, because NaN would poison a scraper's
// sums. Every row has HELP and TYPE lines, even without a series. Whole numbers up to 2^53 are
// exact; other numbers have 15 digits. Writes straight into one string, at tens of nanoseconds a
// series, because a scrape runs beside training.
std::string exposition(const Snapshot& snapshot);
// Returns the same text for other rows.
std::string exposition(std::span<const Metric> rows, const Snapshot& snapshot);
inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// Returns the Markdown page docs/metrics.md.
std::string catalogue_page();

}  // namespace cox::metrics
