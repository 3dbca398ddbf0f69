// The text of an exposition, against prometheus-cpp's serializer of the same values.
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/catalogue.h"
#include "metrics/telemetry_state.h"
#include "simulated_job.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

prometheus::ClientMetric histogram_of(const BucketCounts& counts) {
  prometheus::ClientMetric metric;
  metric.histogram.sample_count = counts.count();
  metric.histogram.sample_sum = counts.sum();
  for (std::size_t i = 0; i < counts.bounds().size(); ++i)
    metric.histogram.bucket.push_back({counts.cumulative(i), counts.bounds()[i]});
  metric.histogram.bucket.push_back({counts.count(), std::numeric_limits<double>::infinity()});
  return metric;
}

prometheus::MetricFamily family_of(const Metric& row, const Snapshot& snapshot) {
  constexpr std::array kTypes = {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                                 prometheus::MetricType::Histogram};
  prometheus::MetricFamily family{
      row.name, row.help, kTypes[static_cast<std::size_t>(row.kind)], {}};
  if (row.kind == MetricKind::histogram) {
    family.metric.push_back(histogram_of(row.buckets(snapshot)));
    return family;
  }
  const Emit add([&](std::span<const std::string_view> labels, double value) {
    if (!std::isfinite(value)) return;
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (std::size_t i = 0; i < labels.size(); ++i)
      metric.label.push_back({row.values.labels[i].name, std::string(labels[i])});
    (row.kind == MetricKind::counter ? metric.counter.value : metric.gauge.value) = value;
  });
  row.values.read(snapshot, add);
  return family;
}

std::string serialized(std::span<const Metric> rows, const Snapshot& snapshot) {
  std::vector<prometheus::MetricFamily> families;
  for (const Metric& row : rows) families.push_back(family_of(row, snapshot));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

// Series -> value; comments, and buckets by the number that `le` is.
std::map<std::string, double> parsed(const std::string& text) {
  std::map<std::string, double> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line[0] == '#') {
      out[line] = 0;
      continue;
    }
    const std::size_t space = line.rfind(' ');
    std::string series = line.substr(0, space);
    const std::size_t le = series.find("le=\"");
    if (le != std::string::npos)
      series = series.substr(0, le) + std::to_string(std::strtod(series.c_str() + le + 4, nullptr));
    CHECK(out.emplace(series, std::strtod(line.c_str() + space + 1, nullptr)).second);
  }
  return out;
}

void check_same(std::span<const Metric> rows, const Snapshot& snapshot) {
  const auto ours = parsed(exposition(rows, snapshot));
  const auto theirs = parsed(serialized(rows, snapshot));
  for (const auto& [series, value] : ours) {
    CAPTURE(series);
    REQUIRE(theirs.contains(series));
    CHECK(theirs.at(series) == doctest::Approx(value).epsilon(1e-14));
  }
  CHECK(ours.size() == theirs.size());
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("the text of a job says what prometheus-cpp's serializer says") {
    SimulatedSetup setup;
    setup.numerics = true;
    SimulatedJob job(setup);
    TelemetryState state(job.job(), UnixTime{1}, {"0.1.0", "abc"}, kSimulatedPeakFlops);
    for (const int rounds : {0, 1, 60}) {
      job.steps(state, rounds);
      check_same(catalogue(), *state.snapshot());
    }
  }

  TEST_CASE("texts from outside are escaped as prometheus-cpp does it") {
    const std::vector<std::string> hostile = {
        "", "\"", "\\", "a\nb", "\\\"\n\\", "x\"}", "a\\\\b", "h.3", "ü", "{a=\"b\"} 1\n# TYPE"};
    const std::vector<Metric> rows = {
        gauge("coxswain_hostile", "", "Texts of others",
              per("block", hostile, [](const Snapshot&, std::size_t i) { return i; }))};
    check_same(rows, Snapshot{});
  }

  TEST_CASE("a help stays one line, as the format asks and prometheus-cpp does not do") {
    const std::vector<Metric> rows = {gauge("coxswain_help", "", "a \\ and\na \"quote\"",
                                            value([](const Snapshot&) { return 1; }))};
    CHECK(exposition(rows, Snapshot{}) ==
          "# HELP coxswain_help a \\\\ and\\na \"quote\"\n# TYPE coxswain_help gauge\n"
          "coxswain_help 1\n");
  }

  TEST_CASE(
      "every finite number is read back to 15 digits, whole ones exactly; others are no series") {
    std::vector<double> values = {0,
                                  -0.0,
                                  -1,
                                  0.1,
                                  1.0 / 3,
                                  1e-300,
                                  1e300,
                                  4503599627370497.5,
                                  0x1p53,
                                  0x1p53 + 2,
                                  -0x1p63,
                                  1'780'000'000.123456,
                                  std::numeric_limits<double>::denorm_min(),
                                  std::numeric_limits<double>::max(),
                                  std::nan(""),
                                  std::numeric_limits<double>::infinity(),
                                  -std::numeric_limits<double>::infinity()};
    std::mt19937_64 random(1);
    for (const double power :
         {1e-9, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 1e5, 1e9, 1e14, 1e15, 1e16}) {
      for (const double near : {1 - 1e-16, 1.0, 1 + 3e-16, 0.99999999999999949, 0.9999999999999995})
        values.insert(values.end(), {power * near, -power * near});
      for (int i = 0; i < 2000; ++i)
        values.push_back(power * (1 + 9 * static_cast<double>(random()) / 0x1p64));
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < values.size(); ++i) names.push_back(std::to_string(i));
    const std::vector<Metric> rows = {
        gauge("coxswain_number", "", "Numbers",
              per("n", names, [&](const Snapshot&, std::size_t i) { return values[i]; }))};
    const auto series = parsed(exposition(rows, Snapshot{}));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string name = "coxswain_number{n=\"" + names[i] + "\"}";
      CAPTURE(values[i]);
      REQUIRE(series.contains(name) == std::isfinite(values[i]));
      if (!std::isfinite(values[i])) continue;
      const bool is_whole = values[i] == std::trunc(values[i]);
      const double most =
          is_whole && std::fabs(values[i]) < 1e15 ? 0 : 5.2e-15 * std::fabs(values[i]);
      CHECK(std::fabs(series.at(name) - values[i]) <= most);
    }
  }
}
