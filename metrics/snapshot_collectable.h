// Families of prometheus-cpp from one snapshot: everything in them belongs to the same round. The
// number of series does not depend on the number of ranks. Any thread.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <vector>

#include "metrics/build_info.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

std::vector<prometheus::MetricFamily> families(const Snapshot& snapshot, const BuildInfo& build);

// For programs that have a prometheus-cpp exposer of their own: register it there.
class SnapshotCollectable final : public prometheus::Collectable {
 public:
  using Source = std::function<std::shared_ptr<const Snapshot>()>;
  // `source` is called on every scrape, on the scraper's thread; it never returns null.
  SnapshotCollectable(Source source, BuildInfo build);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  Source source_;
  BuildInfo build_;
};

}  // namespace cox::metrics
