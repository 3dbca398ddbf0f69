// JobCollectable exports the metrics of a job through the program's own prometheus-cpp Exposer or
// Gateway, so that one scrape has both:
//
//   exposer.RegisterCollectable(session.metrics());
//
// Uses the same rows of the same snapshot as exposition() for /metrics of our own server. Any
// thread may call Collect(), even after the job.
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

// Returns the rows as families of prometheus-cpp. Leaves out values that are not finite.
std::vector<prometheus::MetricFamily> families_of(std::span<const Metric> rows,
                                                  const Snapshot& snapshot);

class JobCollectable final : public prometheus::Collectable {
 public:
  // `state` must live until close().
  explicit JobCollectable(const TelemetryState& state) : state_(&state) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  // Freezes the figures at their present values and drops the reference to `state`.
  void close();

 private:
  mutable std::mutex mutex_;  // guards the members below
  const TelemetryState* state_;
  std::shared_ptr<const Snapshot> last_;
};

}  // namespace cox::metrics
