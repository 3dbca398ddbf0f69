#include "metrics/metric.h"

#include <iterator>
#include <utility>

namespace cox::metrics {
namespace {

// Indexed by MetricKind.
constexpr std::array<std::string_view, 3> kKindNames = {"counter", "gauge", "histogram"};

}  // namespace

std::vector<Metric> joined(std::vector<Metric> first, std::vector<Metric> second) {
  std::move(second.begin(), second.end(), std::back_inserter(first));
  return first;
}

std::string_view to_string(MetricKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

Metric counter(const char* name, std::string help, Reader values, const char* unit) {
  return {name, MetricKind::counter, unit, std::move(help), std::move(values)};
}

Metric gauge(const char* name, const char* unit, std::string help, Reader values) {
  return {name, MetricKind::gauge, unit, std::move(help), std::move(values)};
}

Metric histogram(const char* name, std::string help,
                 const BucketCounts& (*buckets)(const Snapshot&)) {
  return {name, MetricKind::histogram, "seconds", std::move(help), {}, buckets};
}

double statistic(const Spread& spread, std::size_t index) {
  const double values[] = {spread.min, spread.median, spread.p95, spread.max};
  return values[index];
}

Reader spread(SpreadOf get) {
  return per("stat", kStatNames,
             [get](const Snapshot& s, std::size_t i) { return statistic(get(s), i); });
}

Reader cases(std::string label, std::vector<Case> list) {
  std::vector<std::string> names;
  for (const Case& one : list) names.push_back(one.name);
  return per(std::move(label), names,
             [list = std::move(list)](const Snapshot& s, std::size_t i) { return list[i].get(s); });
}

Reader open(std::vector<Label> labels, std::function<void(const Snapshot&, const Emit&)> read) {
  return {std::move(labels), std::move(read)};
}

}  // namespace cox::metrics
