#include "metrics/catalogue.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "metrics/topic.h"

namespace cox::metrics {
namespace {

// By MetricKind.
constexpr std::array<std::string_view, 3> kKindNames = {"counter", "gauge", "histogram"};

std::vector<Metric> collected() {
  std::vector<Metric> all;
  for (const Topic& topic : topics()) {
    for (Metric& metric : topic.metrics()) {
      metric.group = topic.title;
      all.push_back(std::move(metric));
    }
  }
  return all;
}

std::string join(const std::vector<std::string>& items) {
  return fmt::format("{}", fmt::join(items, ", "));
}

std::string labels_cell(const Metric& metric) {
  std::vector<std::string> names;
  for (const Label& label : metric.values.labels) names.push_back("`" + label.name + "`");
  return join(names);
}

std::string kind_cell(const Metric& metric) {
  std::string text(to_string(metric.kind));
  if (!metric.unit.empty()) text += ", " + metric.unit;
  return text;
}

std::string label_values() {
  std::string out;
  for (const Metric& metric : catalogue()) {
    for (const Label& label : metric.values.labels) {
      const std::string values = label.values.empty() ? "known at run time" : join(label.values);
      const std::string row = fmt::format("| `{}` | {} |\n", label.name, values);
      if (out.find(row) == std::string::npos) out += row;
    }
  }
  return out;
}

std::string bucket_rows() {
  const Snapshot empty;
  std::string out;
  for (const Metric& metric : catalogue()) {
    if (metric.kind != MetricKind::histogram) continue;
    out += fmt::format("| `{}` | {} |\n", metric.name,
                       fmt::join(metric.buckets(empty).bounds(), ", "));
  }
  return out;
}

constexpr const char* kIntro =
    "# Metrics\n\n"
    "<!-- Generated from the rows under metrics/topics by cox_metrics_page. Do not edit by hand. "
    "-->\n\n"
    "Rank 0 serves these at `/metrics` in the Prometheus text format 0.0.4. Their number does not\n"
    "grow with the world size: what concerns ranks is exported as `min`, `median`, `p95` and "
    "`max`\n"
    "over all of them, and as the five slowest ranks. Detail for each rank is at `/api/v1/ranks`.\n"
    "In models of more than 48 blocks a few neighbours share the series of a block; each block is "
    "at\n"
    "`/api/v1/numerics`.\n"
    "Everything that one scrape returns belongs to the same round.\n\n"
    "The job's name is not a label: let the scrape configuration add it. A value that is not "
    "finite\n"
    "never enters a counter or histogram, and a gauge without a finite value has no series in "
    "that\n"
    "scrape, so that one bad round does not spoil averages and alerts.\n";

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

const std::vector<Metric>& catalogue() {
  static const std::vector<Metric> all = collected();
  return all;
}

std::string catalogue_page() {
  std::string out = kIntro;
  std::string group;
  for (const Metric& metric : catalogue()) {
    if (metric.group != group) {
      group = metric.group;
      out += "\n## " + group + "\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n";
    }
    out += fmt::format("| `{}` | {} | {} | {} |\n", metric.name, kind_cell(metric),
                       labels_cell(metric), metric.help);
  }
  out += "\n## Label values\n\n| label | values |\n|---|---|\n" + label_values();
  out += "\n## Buckets\n\n| histogram | upper bounds in seconds |\n|---|---|\n" + bucket_rows();
  return out;
}

}  // namespace cox::metrics
