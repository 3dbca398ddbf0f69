#include "metrics/collectable.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "metrics/telemetry_state.h"

namespace cox::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Indexed by MetricKind.
constexpr std::array kTypes = {MetricType::Counter, MetricType::Gauge, MetricType::Histogram};

ClientMetric histogram_of(const BucketCounts& counts) {
  ClientMetric metric;
  metric.histogram.sample_count = counts.count();
  metric.histogram.sample_sum = counts.sum();
  for (std::size_t i = 0; i < counts.bounds().size(); ++i)
    metric.histogram.bucket.push_back({counts.cumulative(i), counts.bounds()[i]});
  metric.histogram.bucket.push_back({counts.count(), std::numeric_limits<double>::infinity()});
  return metric;
}

MetricFamily family_of(const Metric& row, const Snapshot& snapshot) {
  MetricFamily family{row.name, row.help, kTypes[static_cast<std::size_t>(row.kind)], {}};
  if (row.kind == MetricKind::histogram) {
    family.metric.push_back(histogram_of(row.buckets(snapshot)));
    return family;
  }
  const Emit add([&](std::span<const std::string_view> labels, double value) {
    if (!std::isfinite(value)) return;
    ClientMetric& metric = family.metric.emplace_back();
    for (std::size_t i = 0; i < labels.size(); ++i)
      metric.label.push_back({row.values.labels[i].name, std::string(labels[i])});
    (row.kind == MetricKind::counter ? metric.counter.value : metric.gauge.value) = value;
  });
  row.values.read(snapshot, add);
  return family;
}

}  // namespace

std::vector<MetricFamily> families_of(std::span<const Metric> rows, const Snapshot& snapshot) {
  std::vector<MetricFamily> families;
  for (const Metric& row : rows) families.push_back(family_of(row, snapshot));
  return families;
}

std::vector<MetricFamily> JobCollectable::Collect() const {
  std::shared_ptr<const Snapshot> snapshot;
  {
    const std::lock_guard lock(mutex_);
    snapshot = state_ != nullptr ? state_->snapshot() : last_;
  }
  return families_of(catalogue(), *snapshot);
}

void JobCollectable::close() {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) return;
  last_ = state_->snapshot();
  state_ = nullptr;
}

}  // namespace cox::metrics
