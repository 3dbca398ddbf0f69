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
    for (const MetricInfo& info : catalogue()) {
      CAPTURE(info.name);
      CHECK(info.name.starts_with("coxswain_"));
      CHECK(is_plain(info.name));
      CHECK(names.insert(info.name).second);
      CHECK(info.help.size() > 10);
      CHECK(info.help.back() != '.');
      CHECK(find_metric(info.name) == &info);
    }
    CHECK(names.size() >= 30);
    CHECK(find_metric("coxswain_none") == nullptr);
  }

  TEST_CASE("names follow the rules of Prometheus: counters end in total, units are suffixes") {
    for (const MetricInfo& info : catalogue()) {
      CAPTURE(info.name);
      CHECK(ends_with(info.name, "_total") == (info.kind == MetricKind::counter));
      const std::string stem =
          ends_with(info.name, "_total") ? info.name.substr(0, info.name.size() - 6) : info.name;
      if (!info.unit.empty()) CHECK(ends_with(stem, "_" + info.unit));
      for (const char* bad :
           {"_milli", "_micro", "_ms", "_percent", "_mb", "_count", "_sum", "_bucket"})
        CHECK_FALSE(ends_with(stem, bad));
    }
  }

  TEST_CASE("labels are few, bounded, not reserved and not repeated in the name") {
    const std::set<std::string> reserved = {"type", "le", "quantile", "cluster", "job", "instance"};
    for (const MetricInfo& info : catalogue()) {
      CAPTURE(info.name);
      std::size_t series = 1;
      for (const LabelInfo& label : info.labels) {
        CHECK(reserved.count(label.name) == 0);
        CHECK(label.name != "rank");
        CHECK((label.set == LabelInfo::Set::open) == label.values.empty());
        const std::set<std::string> distinct(label.values.begin(), label.values.end());
        CHECK(distinct.size() == label.values.size());
        series *= std::max<std::size_t>(label.values.size(), 1);
      }
      CHECK(series <= 64);
    }
  }

  TEST_CASE("histograms have ascending buckets and nothing else has any") {
    for (const MetricInfo& info : catalogue()) {
      CAPTURE(info.name);
      CHECK((info.kind == MetricKind::histogram) == !info.buckets.empty());
      CHECK(std::is_sorted(info.buckets.begin(), info.buckets.end()));
      if (info.kind == MetricKind::histogram) CHECK(info.labels.empty());
    }
  }

  TEST_CASE("docs/metrics.md is what the catalogue generates") {
    std::ifstream file(std::string(COX_SOURCE_DIR) + "/docs/metrics.md");
    std::ostringstream page;
    page << file.rdbuf();
    INFO("to refresh: cox_metrics_page > docs/metrics.md");
    CHECK((page.str() == catalogue_page()));
  }
}
