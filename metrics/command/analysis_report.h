// Output of `cox analyze`, `cox report` and `cox diff`: JSON with the keys of the published
// figures, panels for a terminal of any width, and a page. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/analysis/findings/figures.h"
#include "metrics/analysis/findings/finding.h"
#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/run_diff.h"
#include "metrics/analysis/findings/run_view.h"
#include "metrics/analysis/timeline/idle_time.h"
#include "metrics/pages/values.h"

namespace cox::tools {

enum class RuleSet : std::uint8_t { coxswain, pytscope };

struct Analysis {
  RuleSet rules = RuleSet::coxswain;
  const diagnosis::RunRecord* run = nullptr;
  diagnosis::Figures figures;
  diagnosis::RunView view;  // of rules coxswain, like `budget` and `flops_source`
  diagnosis::Budget budget;
  std::string flops_source;                 // source of FLOPs and peak; empty = unknown
  std::optional<diagnosis::IdleTime> idle;  // of rules coxswain, if a host timeline exists
  std::vector<diagnosis::Finding> findings;

  // Returns whether the directory has more than a trace or a schedule.
  bool has_steps() const { return run->lowest().size() > 0; }
};

struct Terminal {
  enum class Colour : std::uint8_t { none, ansi };
  std::size_t columns = 80;
  Colour colour = Colour::none;
};

// Returns "4 ranks, 1,200 steps after 8 of warm-up".
std::string size_text(const Analysis& analysis);

std::string analysis_json(const Analysis& analysis);
std::string analysis_text(const Analysis& analysis, const Terminal& terminal);

// Returns one HTML document of at most about 4 MB that loads nothing from elsewhere. The document
// reads without JavaScript. The document's own script adds zoom; any other script is forbidden.
std::string analysis_page(const Analysis& analysis);

std::string diff_json(const diagnosis::RunDiff& diff, RuleSet rules, const std::string& a,
                      const std::string& b);
std::string diff_text(const diagnosis::RunDiff& diff, RuleSet rules, const Terminal& terminal);

// ---- Charts of the page, as inline SVG of bounded size: curves over the steps, a heat map of
// ranks over steps, and lanes of phases. A long run is divided into stretches of steps. The charts
// keep the least and the largest value of each stretch, so no peak is lost, and say so. The charts
// read without JavaScript; report.js adds zoom to all charts at once.

inline constexpr std::size_t kMostBuckets = 1200;  // stretches of a curve

// RunAxis is the common axis of the page's curves: rows of one rank's record, in buckets.
struct RunAxis {
  std::vector<double> steps;       // the number of each row's step
  std::vector<std::size_t> marks;  // rows at which a new plan took effect

  std::size_t rows() const { return steps.size(); }
  std::size_t per_bucket() const { return (rows() + kMostBuckets - 1) / kMostBuckets; }
};

enum class CurveUnit : std::uint8_t { none, seconds, bytes };

struct RunCurve {
  std::string title;  // plain text
  CurveUnit unit = CurveUnit::none;
  std::vector<double> values;  // one a row; absent() for a missing value
};

// Returns the step of each bucket of the axis, for the element around the curves.
std::string bucket_steps(const RunAxis& axis);

// Adds the values of the curve's figure; nothing if the curve has no value.
void add_figure(metrics::List& to, const RunAxis& axis, const RunCurve& curve);

// Returns the heat map: each rank's own work over the median rank's. A job of more than kHeatRows
// ranks shows the ranks that differ most. Empty for fewer than two ranks.
inline constexpr std::size_t kHeatRows = 64;
metrics::List run_heat_map(const diagnosis::RunView& view);

// Returns the steps around the longest one, with a lane for each rank: phases, waiting for the last
// rank, the transfer. A job of more than kLaneRanks ranks shows the ranks that differ most. Empty
// if the run has no step.
inline constexpr std::size_t kLaneRanks = 16;
inline constexpr std::size_t kLaneSteps = 10;
metrics::List phase_lanes(const diagnosis::RunView& view);

}  // namespace cox::tools
