// What `cox analyze`, `cox report` and `cox diff` say, as JSON with the keys of the published
// figures, as panels for a terminal of any width, and as a page. Pure; any thread.
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
  diagnosis::RunView view;  // of rules coxswain, like the next two
  diagnosis::Budget budget;
  std::string flops_source;                 // where its FLOPs and peak come from; empty = unknown
  std::optional<diagnosis::IdleTime> idle;  // of rules coxswain, where there is a host timeline
  std::vector<diagnosis::Finding> findings;

  // Whether the directory has more than a trace or a schedule.
  bool has_steps() const { return run->lowest().size() > 0; }
};

struct Terminal {
  enum class Colour : std::uint8_t { none, ansi };
  std::size_t columns = 80;
  Colour colour = Colour::none;
};

// "4 ranks, 1,200 steps after 8 of warm-up".
std::string size_text(const Analysis& analysis);

std::string analysis_json(const Analysis& analysis);
std::string analysis_text(const Analysis& analysis, const Terminal& terminal);

// One HTML document that asks for nothing from elsewhere, at most some 4 MB. It reads without
// JavaScript; its script, the only one that it lets run, adds zoom.
std::string analysis_page(const Analysis& analysis);

std::string diff_json(const diagnosis::RunDiff& diff, RuleSet rules, const std::string& a,
                      const std::string& b);
std::string diff_text(const diagnosis::RunDiff& diff, RuleSet rules, const Terminal& terminal);

// ---- Charts of the page: a whole run as inline SVG, each of bounded size however long the run is:
// curves over the steps, a heat map of ranks over steps, and lanes of phases. A long run is drawn
// from stretches of steps, of each of which the least and the largest value are kept, so that no
// peak is lost; what is drawn says so. They read without JavaScript; report.js adds zoom to all of
// them at once.

inline constexpr std::size_t kMostBuckets = 1200;  // of a curve

// RunAxis is what all curves of a page have in common: rows of one rank's record, in buckets.
struct RunAxis {
  std::vector<double> steps;       // the number of each row's step
  std::vector<std::size_t> marks;  // rows with which another plan took over

  std::size_t rows() const { return steps.size(); }
  std::size_t per_bucket() const { return (rows() + kMostBuckets - 1) / kMostBuckets; }
};

enum class CurveUnit : std::uint8_t { none, seconds, bytes };

struct RunCurve {
  std::string title;  // plain text
  CurveUnit unit = CurveUnit::none;
  std::vector<double> values;  // one a row; absent() where there is none
};

// Returns the step of each bucket of the axis, for the element around the curves.
std::string bucket_steps(const RunAxis& axis);

// Adds the values of the curve's figure; nothing when no value is there.
void add_figure(metrics::List& to, const RunAxis& axis, const RunCurve& curve);

// Own work of each rank over that of the median rank, rank by rank; of more than kHeatRows ranks
// those that stand out most. Empty for fewer than two ranks.
inline constexpr std::size_t kHeatRows = 64;
metrics::List run_heat_map(const diagnosis::RunView& view);

// The steps around the longest one, a lane for each rank, of many ranks the ones that stand out
// most: phases, then waiting for the last rank, then the transfer. Empty when there is no step.
inline constexpr std::size_t kLaneRanks = 16;
inline constexpr std::size_t kLaneSteps = 10;
metrics::List phase_lanes(const diagnosis::RunView& view);

}  // namespace cox::tools
