#include "metrics/catalogue.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

using namespace cox::metrics;

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_plain(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("every metric has one plain prefixed name, a help sentence and at least 30 exist") {
    std::set<std::string> names;
    for (const Metric& metric : catalogue()) {
      CAPTURE(metric.name);
      CHECK(metric.name.starts_with("coxswain_"));
      CHECK(is_plain(metric.name));
      CHECK(names.insert(metric.name).second);
      CHECK(metric.help.size() > 10);
      CHECK(metric.help.back() != '.');
    }
    CHECK(names.size() >= 30);
  }

  TEST_CASE("names follow the rules of Prometheus: counters end in total, units are suffixes") {
    for (const Metric& metric : catalogue()) {
      CAPTURE(metric.name);
      CHECK(ends_with(metric.name, "_total") == (metric.kind == MetricKind::counter));
      const std::string stem = ends_with(metric.name, "_total")
                                   ? metric.name.substr(0, metric.name.size() - 6)
                                   : metric.name;
      if (!metric.unit.empty()) CHECK(ends_with(stem, "_" + metric.unit));
      for (const char* bad :
           {"_milli", "_micro", "_ms", "_percent", "_mb", "_count", "_sum", "_bucket"})
        CHECK_FALSE(ends_with(stem, bad));
    }
  }

  TEST_CASE("labels are few, bounded, not reserved and not repeated in the name") {
    const std::set<std::string> reserved = {"type", "le", "quantile", "cluster", "job", "instance"};
    for (const Metric& metric : catalogue()) {
      CAPTURE(metric.name);
      std::size_t series = 1;
      for (const Label& label : metric.values.labels) {
        CHECK(reserved.count(label.name) == 0);
        CHECK(label.name != "rank");
        const std::set<std::string> distinct(label.values.begin(), label.values.end());
        CHECK(distinct.size() == label.values.size());
        series *= std::max<std::size_t>(label.values.size(), 1);
      }
      CHECK(series <= 64);
    }
  }

  TEST_CASE("histograms have ascending buckets, and everything else is read by its row") {
    const Snapshot empty;
    for (const Metric& metric : catalogue()) {
      CAPTURE(metric.name);
      const bool is_histogram = metric.kind == MetricKind::histogram;
      CHECK(is_histogram == (metric.buckets != nullptr));
      CHECK(is_histogram == (metric.values.read == nullptr));
      if (!is_histogram) continue;
      const auto bounds = metric.buckets(empty).bounds();
      CHECK_FALSE(bounds.empty());
      CHECK(std::is_sorted(bounds.begin(), bounds.end()));
    }
  }

  TEST_CASE("docs/metrics.md is what the catalogue generates") {
    std::ifstream file(COX_SOURCE_DIR "/docs/metrics.md");
    std::ostringstream page;
    page << file.rdbuf();
    INFO("to refresh: cox_metrics_page > docs/metrics.md");
    CHECK((page.str() == catalogue_page()));
  }
}
