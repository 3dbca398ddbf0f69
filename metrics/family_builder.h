// Fills prometheus-cpp's families after the catalogue: every family is there, in its order, and
// every known label set starts at 0. The only place, with exposition.cc, that sees prometheus-cpp.
// Used within one scrape by one thread.
#pragma once

#include <prometheus/metric_family.h>

#include <initializer_list>
#include <string_view>
#include <vector>

#include "coordinator/core/summary.h"
#include "metrics/catalogue.h"
#include "metrics/histogram.h"

namespace cox::metrics {

class FamilyBuilder {
 public:
  FamilyBuilder();

  // Values of the labels of `name` in the order of the catalogue. A name or label value that the
  // catalogue does not have is a bug: it aborts in debug builds and is left out otherwise.
  void set(std::string_view name, double value) { set(name, {}, value); }
  void set(std::string_view name, std::initializer_list<std::string_view> labels, double value);
  void set(std::string_view name, const BucketCounts& histogram);

  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

// All statistics of a spread, for a metric with the label `stat` alone.
void set_spread(FamilyBuilder& out, std::string_view name, const Spread& spread);

}  // namespace cox::metrics
