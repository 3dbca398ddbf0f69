// The page of `cox whatif --html`. Everything is inline, so that the file can be sent to somebody.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/command/whatif_report.h"
#include "metrics/pages/template.h"

namespace cox::tools {
namespace {

using diagnosis::JobModel;
using diagnosis::LabelSlowdown;
using diagnosis::StepTimes;
using diagnosis::WhatIf;
using metrics::List;
using metrics::list_of;
using metrics::Record;
using metrics::with_rows;

constexpr std::size_t kMostRows = 64;     // workers in a table
constexpr std::size_t kMostSteps = 2000;  // steps in the table of steps
constexpr std::size_t kMostDots = 100;    // dots in the chart of steps
constexpr double kFullColour = 0.5;       // a slowdown by this part has the strongest colour

// Returns the strength of the colour behind a number.
double strength(double ratio) {
  return std::clamp(std::abs(ratio - 1) / kFullColour, 0.0, 1.0) * 0.6;
}

// Returns the values of heat_cell.html: a text on a coloured ground, light or dark as the page.
Record heat_cell(std::string text, double ratio) {
  return {{"text", std::move(text)},
          {"is_slow", ratio >= 1},
          {"percent", std::lround(100 * strength(ratio))}};
}

List texts_of(const std::vector<std::string>& lines) {
  return list_of(lines, [](const std::string& line) { return Record{{"text", line}}; });
}

// --- The heat map: a row for each data-parallel rank, a column for each stage.

constexpr double kWidth = 1000;
constexpr double kLeft = 64;
constexpr double kTop = 20;

// Grid places the workers.
struct Grid {
  std::size_t columns = 1;
  std::size_t rows = 1;
  bool has_stages = false;

  double width() const { return std::min(150.0, (kWidth - kLeft) / static_cast<double>(columns)); }
  double height() const { return rows > 32 ? 12 : 26; }
  double x(double column) const { return kLeft + width() * column; }
  double y(double row) const { return kTop + height() * row; }
};

Record map_cell(const WhatIfReport& report, std::size_t place, const Grid& grid) {
  const double slowdown = report.figures.of_workers[place];
  const double left = grid.x(static_cast<double>(place % grid.columns)) + 1;
  const double top = grid.y(static_cast<double>(place / grid.columns)) + 1;
  const double width = grid.width() - 2;
  const double height = grid.height() - 2;
  return {{"rank", report.model.ranks[place]},
          {"dp_rank", place / report.model.stages},
          {"stage", place % report.model.stages},
          {"slowdown", ratio_text(slowdown)},
          {"x", fixed(left, 1)},
          {"y", fixed(top, 1)},
          {"width", fixed(width, 1)},
          {"height", fixed(height, 1)},
          {"class", slowdown >= 1 ? "slow" : "fast"},
          {"opacity", fixed(strength(slowdown), 3)},
          {"has_text", width >= 44 && height >= 15},
          {"text_x", fixed(left + width / 2, 1)},
          {"text_y", fixed(top + height / 2 + 4, 1)}};
}

// Returns the columns of the grid: one a stage. A run with one stage fills rows with its ranks
// instead.
std::size_t columns_of(const JobModel& model) {
  if (model.stages > 1) return model.stages;
  constexpr std::size_t kWide = 16;
  return std::min(kWide, model.dp_ranks);
}

Record axis_text(double x, double y, std::string_view anchor, std::string text) {
  return {{"x", fixed(x, 1)}, {"y", fixed(y, 1)}, {"anchor", anchor}, {"text", std::move(text)}};
}

List map_axes(const Grid& grid) {
  const std::size_t every = grid.columns > 24 ? 8 : 1;
  const std::size_t every_row = grid.rows > 32 ? 4 : 1;
  const std::string_view column = grid.has_stages ? "stage " : grid.rows > 1 ? "+" : "rank ";
  List out;
  for (std::size_t c = 0; c < grid.columns; c += every)
    out.push_back(axis_text(grid.x(static_cast<double>(c) + 0.5), 13, "middle", concat(column, c)));
  for (std::size_t r = 0; r < grid.rows && (grid.has_stages || grid.rows > 1); r += every_row)
    out.push_back(
        axis_text(kLeft - 8, grid.y(static_cast<double>(r) + 0.5) + 4, "end",
                  grid.has_stages ? concat("dp ", r) : concat("rank ", r * grid.columns)));
  return out;
}

Record map_of(const WhatIfReport& report) {
  Grid grid{columns_of(report.model), 1, report.model.stages > 1};
  grid.rows = (report.model.ranks.size() + grid.columns - 1) / grid.columns;
  List cells;
  for (std::size_t place = 0; place < report.model.ranks.size(); ++place)
    cells.push_back(map_cell(report, place, grid));
  return {{"height", fixed(grid.y(static_cast<double>(grid.rows)) + 4, 0)},
          {"axes", map_axes(grid)},
          {"cells", std::move(cells)}};
}

// --- The chart of steps.

constexpr double kChartHeight = 190;

struct Scale {
  double most = 1;
  std::size_t count = 1;

  double x(std::size_t i) const {
    const double part = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.5;
    return kLeft + part * (kWidth - kLeft - 8);
  }
  double y(double seconds) const {
    return kChartHeight - 24 - seconds / most * (kChartHeight - 36);
  }
};

std::string points_of(const WhatIf& figures, const Scale& scale, double StepTimes::*value) {
  std::string points;
  for (std::size_t s = 0; s < figures.steps.size(); ++s)
    points += concat(s == 0 ? "" : " ", fixed(scale.x(s), 1), ",",
                     fixed(scale.y(figures.steps[s].*value), 1));
  return points;
}

List dots_of(const WhatIf& figures, const Scale& scale) {
  List dots;
  if (figures.steps.size() > kMostDots) return dots;
  for (std::size_t s = 0; s < figures.steps.size(); ++s) {
    const StepTimes& step = figures.steps[s];
    dots.push_back({{"x", fixed(scale.x(s), 1)},
                    {"y", fixed(scale.y(step.actual_seconds), 1)},
                    {"step", step.step},
                    {"seconds", seconds_text(step.actual_seconds)},
                    {"ideal", seconds_text(step.ideal_seconds)}});
  }
  return dots;
}

Record chart_of(const WhatIf& figures) {
  Scale scale{0, figures.steps.size()};
  for (const StepTimes& step : figures.steps)
    scale.most =
        std::max({scale.most, step.traced_seconds, step.actual_seconds, step.ideal_seconds});
  List axes;
  for (const double part : {0.0, 0.5, 1.0})
    axes.push_back({{"y", fixed(scale.y(part * scale.most), 1)},
                    {"text_y", fixed(scale.y(part * scale.most) + 4, 1)},
                    {"text", part == 0 ? "0" : seconds_text(part * scale.most)}});
  return {{"axes", std::move(axes)},
          {"traced", points_of(figures, scale, &StepTimes::traced_seconds)},
          {"ideal", points_of(figures, scale, &StepTimes::ideal_seconds)},
          {"real", points_of(figures, scale, &StepTimes::actual_seconds)},
          {"dots", dots_of(figures, scale)},
          {"first_step", figures.steps.front().step},
          {"last_step", figures.steps.back().step}};
}

List step_table(const WhatIf& figures) {
  List rows;
  for (std::size_t s = 0; s < std::min(figures.steps.size(), kMostSteps); ++s) {
    const StepTimes& step = figures.steps[s];
    const auto worst = std::ranges::max_element(
        figures.labels, {}, [s](const LabelSlowdown& label) { return label.of_steps[s]; });
    const double slowdown = step.actual_seconds / step.ideal_seconds;
    rows.push_back({{"step", step.step},
                    {"recorded", seconds_text(step.traced_seconds)},
                    {"real", seconds_text(step.actual_seconds)},
                    {"ideal", seconds_text(step.ideal_seconds)},
                    {"slowdown", heat_cell(ratio_text(slowdown), slowdown)},
                    {"label", worst->label},
                    {"label_slowdown", ratio_text(worst->of_steps[s])}});
  }
  return with_rows(std::move(rows), figures.steps.size());
}

// --- Operations, and workers by operations.

Record label_row(const LabelSlowdown& label) {
  return {{"label", label.label},
          {"slowdown", heat_cell(ratio_text(label.slowdown), label.slowdown)}};
}

List free_rows(const WhatIf& figures) {
  List rows;
  const auto add = [&rows](std::string_view name, const std::optional<double>& times) {
    if (times) rows.push_back({{"name", name}, {"times", fixed(*times, 4)}});
  };
  add("pipeline communication", figures.pipeline_free);
  add("data-parallel communication", figures.data_parallel_free);
  return with_rows(std::move(rows));
}

// Returns the mean seconds of each label over the workers that have the label.
std::vector<double> usual_work(const WhatIfReport& report) {
  const std::size_t labels = report.figures.labels.size();
  std::vector<double> usual(labels);
  for (std::size_t l = 0; l < labels; ++l) {
    std::size_t count = 0;
    for (std::size_t w = 0; w < report.model.ranks.size(); ++w) {
      usual[l] += report.figures.work_seconds[w * labels + l];
      count += report.figures.work_seconds[w * labels + l] > 0 ? 1 : 0;
    }
    if (count > 0) usual[l] /= static_cast<double>(count);
  }
  return usual;
}

Record worker_row(const WhatIfReport& report, std::size_t place, const std::vector<double>& usual) {
  List work;
  for (std::size_t l = 0; l < usual.size(); ++l) {
    const double seconds = report.figures.work_seconds[place * usual.size() + l];
    const double ratio = usual[l] > 0 && seconds > 0 ? seconds / usual[l] : 1;
    work.push_back(heat_cell(seconds == 0 ? "-" : seconds_text(seconds), ratio));
  }
  const double slowdown = report.figures.of_workers[place];
  return {{"rank", report.model.ranks[place]},
          {"dp_rank", place / report.model.stages},
          {"stage", place % report.model.stages},
          {"slowdown", heat_cell(ratio_text(slowdown), slowdown)},
          {"work", std::move(work)}};
}

List worker_rows(const WhatIfReport& report) {
  const std::vector<double> usual = usual_work(report);
  const std::vector<std::size_t> places = workers_by_cost(report);
  const auto row_of = [&](std::size_t place) { return worker_row(report, place, usual); };
  return with_rows(list_of(places, row_of, kMostRows), places.size());
}

Record tiles_of(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  return {{"slowdown", ratio_text(figures.slowdown)},
          {"mean_step", seconds_text(figures.actual_seconds)},
          {"mean_ideal", seconds_text(figures.ideal_seconds)},
          {"worst_share", share_text(figures.worst.removed_share)},
          {"worst_ranks", figures.worst_ranks.size()},
          {"ranks", report.model.ranks.size()},
          {"has_stages", report.model.stages > 1},
          {"last_stage", share_text(figures.last_stage.removed_share)},
          {"free", figures.data_parallel_free ? ratio_text(*figures.data_parallel_free) : "-"}};
}

}  // namespace

std::string whatif_page(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  return metrics::render("whatif.html",
                         {{"name", report.name},
                          {"layout", layout_text(report)},
                          {"fidelity", percent_text(1 / figures.simulation_gap(), 1)},
                          {"tiles", tiles_of(report)},
                          {"sentences", texts_of(sentences_of(report))},
                          {"gaps", texts_of(report.model.gaps)},
                          {"map", map_of(report)},
                          {"chart", chart_of(figures)},
                          {"steps", step_table(figures)},
                          {"labels", list_of(figures.labels, label_row)},
                          {"frees", free_rows(figures)},
                          {"is_trace", report.source == WhatIfReport::Source::trace},
                          {"workers", worker_rows(report)}});
}

}  // namespace cox::tools
