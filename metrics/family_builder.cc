#include "metrics/family_builder.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>

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

bool all_closed(const MetricInfo& info) {
  return std::all_of(info.labels.begin(), info.labels.end(),
                     [](const LabelInfo& label) { return label.set == LabelInfo::Set::closed; });
}

// Every combination of label values, the last label fastest.
std::vector<ClientMetric> known_series(const MetricInfo& info) {
  std::vector<ClientMetric> series(1);
  for (const LabelInfo& label : info.labels) {
    std::vector<ClientMetric> longer;
    for (const ClientMetric& start : series) {
      for (const std::string& value : label.values) {
        longer.push_back(start);
        longer.back().label.push_back({label.name, value});
      }
    }
    series = std::move(longer);
  }
  return series;
}

bool has_labels(const ClientMetric& metric, std::initializer_list<std::string_view> values) {
  return std::equal(metric.label.begin(), metric.label.end(), values.begin(), values.end(),
                    [](const auto& label, std::string_view value) { return label.value == value; });
}

void put(ClientMetric& metric, MetricType type, double value) {
  if (type == MetricType::Counter) metric.counter.value = value;
  if (type == MetricType::Gauge) metric.gauge.value = value;
}

}  // namespace

FamilyBuilder::FamilyBuilder() {
  families_.reserve(catalogue().size());
  for (const MetricInfo& info : catalogue()) {
    MetricFamily family{info.name, info.help, type_of(info.kind), {}};
    if (all_closed(info)) family.metric = known_series(info);
    families_.push_back(std::move(family));
  }
}

void FamilyBuilder::set(std::string_view name, std::initializer_list<std::string_view> labels,
                        double value) {
  const MetricInfo* info = find_metric(name);
  const bool fits = info != nullptr && info->labels.size() == labels.size();
  assert(fits && "not in the catalogue");
  if (!fits) return;
  MetricFamily& family = families_[static_cast<std::size_t>(info - catalogue().data())];
  for (ClientMetric& metric : family.metric) {
    if (has_labels(metric, labels)) return put(metric, family.type, value);
  }
  assert(!all_closed(*info) && "label value not in the catalogue");
  if (all_closed(*info)) return;
  ClientMetric metric;
  std::size_t at = 0;
  for (std::string_view label : labels)
    metric.label.push_back({info->labels[at++].name, std::string(label)});
  put(metric, family.type, value);
  family.metric.push_back(std::move(metric));
}

void FamilyBuilder::set(std::string_view name, const BucketCounts& histogram) {
  const MetricInfo* info = find_metric(name);
  assert(info != nullptr && info->kind == MetricKind::histogram);
  if (info == nullptr) return;
  ClientMetric metric;
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = histogram.sum();
  const auto bounds = histogram.bounds();
  for (std::size_t i = 0; i < bounds.size(); ++i)
    metric.histogram.bucket.push_back({histogram.cumulative(i), bounds[i]});
  metric.histogram.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
  families_[static_cast<std::size_t>(info - catalogue().data())].metric = {std::move(metric)};
}

void set_spread(FamilyBuilder& out, std::string_view name, const Spread& spread) {
  out.set(name, {"min"}, spread.min);
  out.set(name, {"median"}, spread.median);
  out.set(name, {"p95"}, spread.p95);
  out.set(name, {"max"}, spread.max);
}

}  // namespace cox::metrics
