// JobCollectable gives the metrics of a job to a program that has a prometheus-cpp Exposer or
// Gateway of its own, so that one scrape has both:
//
//   exposer.RegisterCollectable(session.metrics());
//
// The last stage before a scraper, beside exposition.h, which /metrics of our own server uses: the
// same rows of the same snapshot. Collect() may be called from any thread, also after the job.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "metrics/catalogue.h"

namespace cox::metrics {

class TelemetryState;

// Returns the rows as prometheus-cpp has them. Values that are not finite are left out.
std::vector<prometheus::MetricFamily> families_of(std::span<const Metric> rows,
                                                  const Snapshot& snapshot);

class JobCollectable final : public prometheus::Collectable {
 public:
  // `state` must live until close().
  explicit JobCollectable(const TelemetryState& state) : state_(&state) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  // From here on the figures are those of now.
  void close();

 private:
  mutable std::mutex mutex_;  // guards what follows
  const TelemetryState* state_;
  std::shared_ptr<const Snapshot> last_;
};

}  // namespace cox::metrics
