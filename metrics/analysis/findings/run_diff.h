// Two runs beside each other: settings, figures, the first step in which their losses differ, and
// what explains it.
//
//   RunRecord a, RunRecord b -> diff_of() -> RunDiff
//
// The part that is published has pytscope's meaning; the rest tells a slower run from a noisy one.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metrics/records/run_record.h"

namespace cox::diagnosis {

struct SettingDiff {
  std::string key;
  std::string a;  // JSON text; a quoted "<absent>" where the run has no such setting
  std::string b;
};

struct MetricDiff {
  std::string key;
  std::optional<double> a;
  std::optional<double> b;
  std::optional<double> delta() const { return a && b ? std::optional(*b - *a) : std::nullopt; }
};

// The first step in which a rank's losses differ by more than the tolerance.
struct LossDifference {
  std::int64_t step = 0;
  std::int32_t rank = 0;
  double a = 0;
  double b = 0;
  std::optional<double> plan_a;
  std::optional<double> plan_b;
};

// Mean step time of b by that of a, with the interval in which it lies with 95 % confidence
// (bootstrap over 50 stretches of steps, so that neighbours may depend on each other). The time of
// a stretch is that of the rank which was slowest in it.
struct TimeRatio {
  double ratio = 1;
  double low = 1;
  double high = 1;
};

// Where the journals part: the first change of plan that stands in one of them and not, at the same
// place of the order, in the other. Nothing where that job changed its plan no more.
struct PlanDifference {
  std::optional<PlanEvent> a;
  std::optional<PlanEvent> b;
};

struct RunDiff {
  std::string name_a;
  std::string name_b;
  std::vector<SettingDiff> environment;
  std::vector<SettingDiff> config;
  std::vector<MetricDiff> metrics;
  std::optional<std::size_t> first_divergence;  // index in the lowest rank's losses
  bool is_identical = false;                    // in all losses of the lowest rank
  std::vector<std::string> published_notes;

  // Of all ranks that both runs have, by their numbers.
  std::optional<LossDifference> loss;
  std::optional<TimeRatio> time;
  std::optional<std::int64_t> plans_differ_at;  // step
  std::optional<PlanDifference> plans;
  std::vector<std::string> gaps;         // of both records: what was left out or is doubtful
  std::vector<std::string> differences;  // beyond tolerance; empty = equal
  std::vector<std::string> explanation;  // the likeliest first
};

struct DiffTolerance {
  double loss = 0;       // relative
  double time = 0.05;    // of the ratio of step times, beyond its confidence
  double memory = 0.05;  // of a rank's peak
  std::size_t warmup_steps = 0;
};

// Runs of another number of ranks, of other ranks or of other steps differ, whatever the tolerance.
// REQUIRES: both have a rank.
RunDiff diff_of(const RunRecord& a, const RunRecord& b, const DiffTolerance& tolerance);

}  // namespace cox::diagnosis
