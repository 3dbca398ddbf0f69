// The page of `cox whatif --html`: everything is inline, so that the file can be sent to somebody.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/command/whatif_report.h"
#include "metrics/html.h"

namespace cox::tools {
namespace {

using diagnosis::JobModel;
using diagnosis::LabelSlowdown;
using diagnosis::StepTimes;
using diagnosis::WhatIf;
using metrics::escape;

constexpr std::size_t kMostRows = 64;     // of workers in a table
constexpr std::size_t kMostSteps = 2000;  // in the table of steps
constexpr double kFullColour = 0.5;       // slower by this much is the strongest colour

constexpr std::string_view kStyle = R"css(
.map{display:block;width:100%;min-width:640px;height:auto;font:11px system-ui,sans-serif}
.map text{fill:var(--ink)}.map .axis{fill:var(--soft)}
.map .frame{fill:none;stroke:var(--line)}
.map .slow{fill:var(--bad)}.map .fast{fill:var(--accent)}
.map .real{fill:none;stroke:var(--bad);stroke-width:1.6;stroke-linejoin:round}
.map .ideal{fill:none;stroke:var(--good);stroke-width:1.6;stroke-linejoin:round}
.map .traced{fill:none;stroke:var(--soft);stroke-width:1;stroke-dasharray:3 2}
.map .real.dot{fill:var(--bad)}
.key.real{color:var(--bad)}.key.ideal{color:var(--good)}.key.traced{color:var(--soft)}
.say{margin:0;padding:0;list-style:none}.say li{padding:3px 0}.say li:first-child{font-size:17px;font-weight:600}
)css";

// --- Colours: how strong the ground behind a number is.

double strength(double ratio) {
  return std::clamp(std::abs(ratio - 1) / kFullColour, 0.0, 1.0) * 0.6;
}

std::string ground(double ratio) {
  return fmt::format("class=\"{}\" fill-opacity=\"{}\"", ratio >= 1 ? "slow" : "fast",
                     fixed(strength(ratio), 3));
}

// As an inline style: a gradient takes the page's own colours, light or dark.
std::string heat_cell(const std::string& text, double ratio) {
  const int percent = static_cast<int>(std::lround(100 * strength(ratio)));
  return fmt::format(
      "<span style=\"display:inline-block;min-width:74px;padding:2px 7px;border-radius:4px;"
      "background:color-mix(in srgb,var({}) {}%,transparent)\">{}</span>",
      ratio >= 1 ? "--bad" : "--accent", percent, escape(text));
}

std::string card(std::string_view title, std::string_view hint, const std::string& body) {
  return metrics::card(title, fmt::format("<p class=\"hint\">{}</p>{}", hint, body));
}

// --- Tiles and sentences.

std::string tile(std::string_view title, const std::string& value, std::string_view hint) {
  return fmt::format(
      "<section class=\"card tile\"><h2>{}</h2><div class=\"big\">{}</div><p class=\"hint\">{}</p>"
      "</section>",
      title, escape(value), hint);
}

std::string tiles(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  std::string out = "<div class=\"tiles\">";
  out += tile("Slowdown S", ratio_text(figures.slowdown), "step time over that without stragglers");
  out += tile("Mean step", seconds_text(figures.actual_seconds),
              escape(seconds_text(figures.ideal_seconds)) + " without stragglers");
  out += tile("Worst ranks, M_W", share_text(figures.worst.removed_share),
              fmt::format("of the loss, by {} of {} ranks", figures.worst_ranks.size(),
                          report.model.ranks.size()));
  out += report.model.stages > 1
             ? tile("Last stage, M_S", share_text(figures.last_stage.removed_share), "of the loss")
             : tile("Free communication",
                    figures.data_parallel_free ? ratio_text(*figures.data_parallel_free) : "-",
                    "times as fast");
  return out + "</div>";
}

std::string answer(const WhatIfReport& report) {
  std::string out = "<section class=\"card\"><ul class=\"say\">";
  for (const std::string& sentence : sentences_of(report))
    out += "<li>" + escape(sentence) + "</li>";
  out += "</ul>";
  for (const std::string& gap : report.model.gaps)
    out += "<p class=\"note\" style=\"margin-top:8px\">" + escape(gap) + "</p>";
  return out + "</section>";
}

// --- The heat map: a row for each data-parallel rank, a column for each stage.

struct Cell {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

std::string map_cell(const WhatIfReport& report, std::size_t place, const Cell& cell) {
  const double slowdown = report.figures.of_workers[place];
  std::string out = fmt::format(
      "<g><title>rank {}: dp rank {}, stage {}, S_w {}</title><rect x=\"{:.1f}\" y=\"{:.1f}\" "
      "width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" {}/><rect x=\"{:.1f}\" y=\"{:.1f}\" "
      "width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" class=\"frame\"/>",
      report.model.ranks[place], place / report.model.stages, place % report.model.stages,
      ratio_text(slowdown), cell.left, cell.top, cell.width, cell.height, ground(slowdown),
      cell.left, cell.top, cell.width, cell.height);
  if (cell.width >= 44 && cell.height >= 15)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                       cell.left + cell.width / 2, cell.top + cell.height / 2 + 4,
                       ratio_text(slowdown));
  return out + "</g>";
}

// A run has one stage, so its ranks fill the rows of a grid instead.
std::size_t columns_of(const JobModel& model) {
  if (model.stages > 1) return model.stages;
  constexpr std::size_t kWide = 16;
  return std::min(kWide, model.dp_ranks);
}

std::string axis_text(double x, double y, const std::string& anchor, const std::string& text) {
  return fmt::format("<text class=\"axis\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                     x, y, anchor, text);
}

std::string column_name(std::size_t column, std::size_t rows) {
  return rows > 1 ? fmt::format("+{}", column) : fmt::format("rank {}", column);
}

std::string heat_map(const WhatIfReport& report) {
  constexpr double kWidth = 1000;
  constexpr double kLeft = 64;
  constexpr double kTop = 20;
  const std::size_t columns = columns_of(report.model);
  const std::size_t rows = (report.model.ranks.size() + columns - 1) / columns;
  const double width = std::min(150.0, (kWidth - kLeft) / static_cast<double>(columns));
  const double height = rows > 32 ? 12 : 26;
  const bool has_stages = report.model.stages > 1;
  const std::size_t every = columns > 24 ? 8 : 1;
  const std::size_t every_row = rows > 32 ? 4 : 1;
  std::string out = fmt::format(
      "<div class=\"scroll\"><svg class=\"map\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"Slowdown by "
      "worker\">",
      kWidth, kTop + height * static_cast<double>(rows) + 4);
  for (std::size_t c = 0; c < columns; c += every)
    out += axis_text(kLeft + width * (static_cast<double>(c) + 0.5), 13, "middle",
                     has_stages ? fmt::format("stage {}", c) : column_name(c, rows));
  for (std::size_t r = 0; r < rows && (has_stages || rows > 1); r += every_row)
    out += axis_text(kLeft - 8, kTop + height * (static_cast<double>(r) + 0.5) + 4, "end",
                     has_stages ? fmt::format("dp {}", r) : fmt::format("rank {}", r * columns));
  for (std::size_t place = 0; place < report.model.ranks.size(); ++place) {
    const auto column = static_cast<double>(place % columns);
    const auto row = static_cast<double>(place / columns);
    out += map_cell(report, place,
                    {kLeft + width * column + 1, kTop + height * row + 1, width - 2, height - 2});
  }
  return out + "</svg></div>";
}

// --- The chart of steps.

constexpr double kChartWidth = 1000;
constexpr double kChartHeight = 190;
constexpr double kChartLeft = 64;

struct Scale {
  double most = 1;
  std::size_t count = 1;

  double x(std::size_t i) const {
    const double part = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.5;
    return kChartLeft + part * (kChartWidth - kChartLeft - 8);
  }
  double y(double seconds) const {
    return kChartHeight - 24 - seconds / most * (kChartHeight - 36);
  }
};

std::string curve(const WhatIf& figures, const Scale& scale, std::string_view css_class,
                  double StepTimes::*value) {
  std::string points;
  for (std::size_t s = 0; s < figures.steps.size(); ++s)
    points += fmt::format("{}{:.1f},{:.1f}", s == 0 ? "" : " ", scale.x(s),
                          scale.y(figures.steps[s].*value));
  return fmt::format("<polyline class=\"{}\" points=\"{}\"/>", css_class, points);
}

std::string step_chart(const WhatIf& figures) {
  Scale scale{0, figures.steps.size()};
  for (const StepTimes& step : figures.steps)
    scale.most =
        std::max({scale.most, step.traced_seconds, step.actual_seconds, step.ideal_seconds});
  std::string out = fmt::format(
      "<div class=\"scroll\"><svg class=\"map\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"Time of each "
      "step\">",
      kChartWidth, kChartHeight);
  for (const double part : {0.0, 0.5, 1.0}) {
    const double y = scale.y(part * scale.most);
    out += fmt::format("<line class=\"frame\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                       kChartLeft, kChartWidth, y, y);
    out +=
        axis_text(kChartLeft - 8, y + 4, "end", part == 0 ? "0" : seconds_text(part * scale.most));
  }
  out += curve(figures, scale, "traced", &StepTimes::traced_seconds);
  out += curve(figures, scale, "ideal", &StepTimes::ideal_seconds);
  out += curve(figures, scale, "real", &StepTimes::actual_seconds);
  if (figures.steps.size() <= 100) {
    for (std::size_t s = 0; s < figures.steps.size(); ++s) {
      const StepTimes& step = figures.steps[s];
      out += fmt::format(
          "<circle class=\"real dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\"><title>step {}: {}, "
          "ideal "
          "{}</title></circle>",
          scale.x(s), scale.y(step.actual_seconds), step.step, seconds_text(step.actual_seconds),
          seconds_text(step.ideal_seconds));
    }
  }
  out += axis_text(kChartLeft, kChartHeight - 6, "start",
                   fmt::format("step {}", figures.steps.front().step));
  out += axis_text(kChartWidth - 8, kChartHeight - 6, "end",
                   fmt::format("step {}", figures.steps.back().step));
  out +=
      "</svg></div><ul class=\"keys\"><li><b class=\"key real\">&#8212;</b> real own times</li>"
      "<li><b class=\"key ideal\">&#8212;</b> without stragglers</li>"
      "<li><b class=\"key traced\">- -</b> as recorded</li></ul>";
  return out;
}

std::string step_table(const WhatIf& figures) {
  metrics::Table table({"Step/n", "Recorded/n", "Real/n", "Ideal/n", "S/n", "Costs most"}, "dense");
  for (std::size_t s = 0; s < std::min(figures.steps.size(), kMostSteps); ++s) {
    const StepTimes& step = figures.steps[s];
    const auto worst = std::ranges::max_element(
        figures.labels, {}, [s](const LabelSlowdown& label) { return label.of_steps[s]; });
    table.add({std::to_string(step.step), seconds_text(step.traced_seconds),
               seconds_text(step.actual_seconds), seconds_text(step.ideal_seconds),
               heat_cell(ratio_text(step.actual_seconds / step.ideal_seconds),
                         step.actual_seconds / step.ideal_seconds),
               escape(worst->label) + " (" + ratio_text(worst->of_steps[s]) + ")"});
  }
  const std::string more =
      figures.steps.size() > kMostSteps
          ? fmt::format("<p class=\"hint\">and {} more</p>", figures.steps.size() - kMostSteps)
          : "";
  return "<details><summary>Every step</summary>" + table.html() + more + "</details>";
}

// --- Operations, and workers by operations.

std::string label_table(const WhatIf& figures) {
  metrics::Table table({"Only with the delays of", "S_t/n"}, "dense");
  for (const LabelSlowdown& label : figures.labels)
    table.add({escape(label.label), heat_cell(ratio_text(label.slowdown), label.slowdown)});
  return table.html();
}

std::string free_table(const WhatIf& figures) {
  metrics::Table table({"What if it were free", "Times as fast/n"}, "dense");
  if (figures.pipeline_free)
    table.add({"pipeline communication", fixed(*figures.pipeline_free, 4)});
  if (figures.data_parallel_free)
    table.add({"data-parallel communication", fixed(*figures.data_parallel_free, 4)});
  return figures.pipeline_free || figures.data_parallel_free ? table.html() : "";
}

// What each label takes on average over the workers that have it.
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

std::vector<std::string> worker_cells(const WhatIfReport& report, std::size_t place,
                                      const std::vector<double>& usual) {
  const std::size_t stages = report.model.stages;
  const double slowdown = report.figures.of_workers[place];
  std::vector<std::string> cells = {std::to_string(report.model.ranks[place])};
  if (report.source == WhatIfReport::Source::trace)
    cells.insert(cells.end(), {std::to_string(place / stages), std::to_string(place % stages)});
  cells.push_back(heat_cell(ratio_text(slowdown), slowdown));
  for (std::size_t l = 0; l < usual.size(); ++l) {
    const double seconds = report.figures.work_seconds[place * usual.size() + l];
    const double ratio = usual[l] > 0 && seconds > 0 ? seconds / usual[l] : 1;
    cells.push_back(heat_cell(seconds == 0 ? "-" : seconds_text(seconds), ratio));
  }
  return cells;
}

std::string work_table(const WhatIfReport& report) {
  const std::vector<double> usual = usual_work(report);
  std::vector<std::string> columns = {"Rank/n"};
  if (report.source == WhatIfReport::Source::trace)
    columns.insert(columns.end(), {"Dp rank/n", "Stage/n"});
  columns.push_back("S_w/n");
  for (const LabelSlowdown& label : report.figures.labels)
    columns.push_back(escape(label.label) + "/n");
  metrics::Table table({columns.begin(), columns.end()}, "dense");
  const std::vector<std::size_t> places = workers_by_cost(report);
  for (std::size_t i = 0; i < std::min(places.size(), kMostRows); ++i)
    table.add(worker_cells(report, places[i], usual));
  if (places.size() <= kMostRows) return table.html();
  return table.html() + fmt::format("<p class=\"hint\">and {} more, none of them slower</p>",
                                    places.size() - kMostRows);
}

std::string head(const WhatIfReport& report) {
  return fmt::format(
      "<header class=\"top\"><div class=\"line\">{}<h1>What if there were no stragglers in "
      "{}?</h1></div>"
      "<p class=\"meta\">{}; simulated steps are {} of the recorded ones</p></header>",
      metrics::page_mark(), escape(report.name), escape(layout_text(report)),
      percent_text(1 / report.figures.simulation_gap(), 1));
}

}  // namespace

std::string whatif_page(const WhatIfReport& report) {
  std::string body = "<style>" + std::string(kStyle) + "</style><main class=\"page\">";
  body += head(report) + tiles(report) + answer(report);
  body += card("Workers",
               "S_w: how slow the job would be by this worker alone. Red is slower than "
               "without stragglers, blue faster.",
               heat_map(report));
  body += card("Steps", "The time of each step, simulated with real and with ideal own times.",
               step_chart(report.figures) + step_table(report.figures));
  body += "<div class=\"pair\">";
  body += card("Operations", "How slow the job would be by the delays of one kind alone.",
               label_table(report.figures));
  body += card("Communication", "A bound on what faster links could gain.",
               free_table(report.figures)) +
          "</div>";
  body += card("Own time of a mean step",
               "Without waiting for others. The colour compares with the "
               "mean of the workers that have such operations.",
               work_table(report));
  body +=
      "<footer><span>cox whatif</span><span>Definitions: docs/what-if.md</span></footer></main>";
  return metrics::html_document("What if: " + report.name, "", body);
}

}  // namespace cox::tools
