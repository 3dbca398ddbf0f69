// The text of an exposition, against prometheus-cpp's serializer of the same values.
#include <prometheus/text_serializer.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/catalogue.h"
#include "metrics/collectable.h"
#include "metrics/telemetry_state.h"
#include "simulated_job.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

std::string serialized(std::span<const Metric> rows, const Snapshot& snapshot) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families_of(rows, snapshot));
  return text.str();
}

// Returns series -> value. Skips comments; names buckets by the number of `le`.
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
  for (const auto& sample : ours) {
    CAPTURE(sample.first);
    REQUIRE(theirs.contains(sample.first));
    CHECK(theirs.at(sample.first) == doctest::Approx(sample.second).epsilon(1e-14));
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

  TEST_CASE(
      "an exposer of the program's own gets the newest figures, and the last ones after the job") {
    SimulatedJob job(SimulatedSetup{});
    std::optional<TelemetryState> state(std::in_place, job.job(), UnixTime{1},
                                        BuildInfo{"0.1.0", "abc"}, kSimulatedPeakFlops);
    JobCollectable collectable(*state);
    const auto serialized_now = [&] {
      std::ostringstream text;
      prometheus::TextSerializer().Serialize(text, collectable.Collect());
      return text.str();
    };
    const std::string before = serialized_now();
    job.steps(*state, 5);
    const std::string after = serialized_now();
    CHECK(before != after);
    CHECK(after == serialized(catalogue(), *state->snapshot()));
    collectable.close();
    state.reset();
    CHECK(serialized_now() == after);
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
