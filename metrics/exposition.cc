#include "metrics/exposition.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "metrics/catalogue.h"

namespace cox::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricType type_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::counter:
      return MetricType::Counter;
    case MetricKind::gauge:
      return MetricType::Gauge;
    case MetricKind::histogram:
      return MetricType::Histogram;
  }
  return MetricType::Untyped;
}

ClientMetric histogram_of(const BucketCounts& counts) {
  ClientMetric metric;
  metric.histogram.sample_count = counts.count();
  metric.histogram.sample_sum = counts.sum();
  const auto bounds = counts.bounds();
  for (std::size_t i = 0; i < bounds.size(); ++i)
    metric.histogram.bucket.push_back({counts.cumulative(i), bounds[i]});
  metric.histogram.bucket.push_back({counts.count(), std::numeric_limits<double>::infinity()});
  return metric;
}

ClientMetric series_of(const Metric& row, Sample sample) {
  ClientMetric metric;
  for (std::size_t i = 0; i < sample.labels.size(); ++i)
    metric.label.push_back({row.values.labels[i].name, std::move(sample.labels[i])});
  (row.kind == MetricKind::counter ? metric.counter.value : metric.gauge.value) = sample.value;
  return metric;
}

MetricFamily family_of(const Metric& row, const Snapshot& snapshot) {
  MetricFamily family{row.name, row.help, type_of(row.kind), {}};
  if (row.kind == MetricKind::histogram) {
    family.metric.push_back(histogram_of(row.buckets(snapshot)));
    return family;
  }
  for (Sample& sample : row.values.read(snapshot))
    family.metric.push_back(series_of(row, std::move(sample)));
  return family;
}

}  // namespace

std::string exposition(const Snapshot& snapshot) {
  std::vector<MetricFamily> families;
  for (const Metric& row : catalogue()) families.push_back(family_of(row, snapshot));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

}  // namespace cox::metrics
