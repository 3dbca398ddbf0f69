// Compares two runs: settings, figures, the first step with different losses, and likely reasons.
// The published part has pytscope's meaning; the rest tells a slower run from a noisy one.
//
//   RunRecord a, RunRecord b -> diff_of() -> RunDiff
//
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
  std::string a;  // JSON text; a quoted "<absent>" if the run lacks the setting
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

// Mean step time of b divided by that of a, with its 95 % confidence interval: a bootstrap over 50
// stretches of steps, which allows for dependent neighbours. The slowest rank determines the time
// of a stretch.
struct TimeRatio {
  double ratio = 1;
  double low = 1;
  double high = 1;
};

// The changes of plan at the first place at which two journals differ. nullopt for a job that made
// no change there.
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

  // Over all ranks that both runs have, matched by number.
  std::optional<LossDifference> loss;
  std::optional<TimeRatio> time;
  std::optional<std::int64_t> plans_differ_at;  // step
  std::optional<PlanDifference> plans;
  std::vector<std::string> gaps;         // data left out or doubtful in either record
  std::vector<std::string> differences;  // beyond tolerance; empty = equal
  std::vector<std::string> explanation;  // the likeliest first
};

struct DiffTolerance {
  double loss = 0;       // relative
  double time = 0.05;    // relative to the ratio of step times, beyond its confidence interval
  double memory = 0.05;  // relative to a rank's peak
  std::size_t warmup_steps = 0;
};

// Compares two runs. Other ranks or other steps always count as a difference, whatever the
// tolerance. REQUIRES: both have a rank.
RunDiff diff_of(const RunRecord& a, const RunRecord& b, const DiffTolerance& tolerance);

}  // namespace cox::diagnosis
