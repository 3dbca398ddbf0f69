#include <charconv>

#include "metrics/catalogue.h"

namespace cox::metrics {
namespace {

std::string number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

std::string join(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) {
    if (!out.empty()) out += ", ";
    out += item;
  }
  return out;
}

std::string labels_cell(const MetricInfo& info) {
  std::vector<std::string> names;
  for (const LabelInfo& label : info.labels) names.push_back("`" + label.name + "`");
  return join(names);
}

std::string kind_cell(const MetricInfo& info) {
  std::string text(to_string(info.kind));
  if (!info.unit.empty()) text += ", " + info.unit;
  return text;
}

std::string label_values() {
  std::string out;
  for (const MetricInfo& info : catalogue()) {
    for (const LabelInfo& label : info.labels) {
      const std::string values =
          label.set == LabelInfo::Set::open ? "known at run time" : join(label.values);
      const std::string row = "| `" + label.name + "` | " + values + " |\n";
      if (out.find(row) == std::string::npos) out += row;
    }
  }
  return out;
}

std::string bucket_rows() {
  std::string out;
  for (const MetricInfo& info : catalogue()) {
    if (info.kind != MetricKind::histogram) continue;
    std::vector<std::string> bounds;
    for (double bound : info.buckets) bounds.push_back(number(bound));
    out += "| `" + info.name + "` | " + join(bounds) + " |\n";
  }
  return out;
}

constexpr const char* kIntro =
    "# Metrics\n\n"
    "<!-- Generated from metrics/catalogue.cc by cox_metrics_page. Do not edit by hand. -->\n\n"
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
    "never enters a counter or histogram; gauges may be NaN.\n";

}  // namespace

std::string catalogue_page() {
  std::string out = kIntro;
  std::string group;
  for (const MetricInfo& info : catalogue()) {
    if (info.group != group) {
      group = info.group;
      out += "\n## " + group + "\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n";
    }
    out += "| `" + info.name + "` | " + kind_cell(info) + " | " + labels_cell(info) + " | " +
           info.help + " |\n";
  }
  out += "\n## Label values\n\n| label | values |\n|---|---|\n" + label_values();
  out += "\n## Buckets\n\n| histogram | upper bounds in seconds |\n|---|---|\n" + bucket_rows();
  return out;
}

}  // namespace cox::metrics
