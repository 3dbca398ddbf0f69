#include "metrics/catalogue.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/core/never_destroyed.h"
#include "metrics/topics/control.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/findings.h"
#include "metrics/topics/heat_map.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/operators.h"
#include "metrics/topics/parallel.h"
#include "metrics/topics/plan.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

// Writes a rank as an object with the fields of all topics.
void put_row(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.begin_object();
  for (const Topic& topic : topics()) {
    if (topic.put_rank != nullptr) topic.put_rank(json, s, row);
  }
  json.end_object();
}

std::vector<Metric> collected() {
  std::vector<Metric> all;
  for (const Topic& topic : topics()) {
    if (topic.metrics == nullptr) continue;
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
  for (const Label& label : metric.values.labels) names.push_back(fmt::format("`{}`", label.name));
  return join(names);
}

std::string kind_cell(const Metric& metric) {
  std::string text(to_string(metric.kind));
  if (!metric.unit.empty()) text += fmt::format(", {}", metric.unit);
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

const std::vector<Topic>& topics() {
  static const std::vector<Topic>& all = never_destroyed(std::vector<Topic>{
      findings_topic(),
      progress_topic(),
      ranks_topic(put_row),
      heat_topic(),
      stalls_topic(),
      plan_topic(),
      parallel_topic(),
      operators_topic(),
      memory_topic(),
      numerics_topic(),
      decisions_topic(),
      control_topic(),
  });
  return all;
}

const std::vector<Metric>& catalogue() {
  static const std::vector<Metric>& all = never_destroyed(collected());
  return all;
}

std::string catalogue_page() {
  std::string out = kIntro;
  std::string group;
  for (const Metric& metric : catalogue()) {
    if (metric.group != group) {
      group = metric.group;
      out += fmt::format("\n## {}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
                         group);
    }
    out += fmt::format("| `{}` | {} | {} | {} |\n", metric.name, kind_cell(metric),
                       labels_cell(metric), metric.help);
  }
  out += fmt::format("\n## Label values\n\n| label | values |\n|---|---|\n{}", label_values());
  out += fmt::format("\n## Buckets\n\n| histogram | upper bounds in seconds |\n|---|---|\n{}",
                     bucket_rows());
  return out;
}

}  // namespace cox::metrics
