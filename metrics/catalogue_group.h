// What the parts of the catalogue are written with. Of this folder only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "metrics/catalogue.h"

namespace cox::metrics {

using Names = std::vector<std::string>;

template <class Values>
LabelInfo label(std::string name, const Values& values) {
  LabelInfo info{std::move(name), {}, LabelInfo::Set::closed};
  for (const auto& value : values) info.values.emplace_back(value);
  return info;
}

inline LabelInfo open_label(std::string name) {
  return {std::move(name), {}, LabelInfo::Set::open};
}

// Collects the metrics of one heading.
class Group {
 public:
  using Labels = std::vector<LabelInfo>;

  Group(std::vector<MetricInfo>& all, std::string heading)
      : all_(all), heading_(std::move(heading)) {}

  void counter(const char* name, const char* help, Labels labels = {}, const char* unit = "") {
    all_.push_back({heading_, name, MetricKind::counter, unit, help, std::move(labels), {}});
  }
  void gauge(const char* name, const char* unit, const std::string& help, Labels labels = {}) {
    all_.push_back({heading_, name, MetricKind::gauge, unit, help, std::move(labels), {}});
  }
  void histogram(const char* name, const char* help, const std::vector<double>& buckets) {
    all_.push_back({heading_, name, MetricKind::histogram, "seconds", help, {}, buckets});
  }

 private:
  std::vector<MetricInfo>& all_;
  std::string heading_;
};

// The headings "Data parallel" and "Numerics".
void add_parallel_metrics(std::vector<MetricInfo>& all);
void add_numerics_metrics(std::vector<MetricInfo>& all);

}  // namespace cox::metrics
