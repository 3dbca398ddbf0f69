// The page of `cox report` and `cox analyze --html`. Everything is inline, so that the file opens
// from a disk in years and can be sent to somebody.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/command/analysis_report.h"
#include "metrics/format.h"
#include "metrics/pages/template.h"
#include "metrics/topics/findings.h"

namespace cox::tools {
namespace {

using diagnosis::BudgetLine;
using diagnosis::Finding;
using diagnosis::RankRecord;
using diagnosis::RunSetting;
using diagnosis::RunView;
using metrics::List;
using metrics::list_of;
using metrics::more_text;
using metrics::Record;
using metrics::with_rows;

// The most entries of a page; the page counts the rest.
constexpr std::size_t kMostFindings = 100;
constexpr std::size_t kMostSentences = 50;
constexpr std::size_t kMostSettings = 400;
constexpr std::size_t kMostCurves = 24;
constexpr std::size_t kMostRanks = 64;
constexpr std::size_t kMostBytes = 600;  // of one text

std::string shown_text(std::string_view text) {
  return concat(text.substr(0, kMostBytes), text.size() > kMostBytes ? "…" : "");
}

List texts_of(const std::vector<std::string>& lines, std::size_t most) {
  const auto text_of = [](const std::string& line) { return Record{{"text", shown_text(line)}}; };
  return with_rows(list_of(lines, text_of, most), lines.size());
}

// --- Findings.

std::string number_text(double value) {
  const bool is_whole = value == std::trunc(value) && std::fabs(value) < 1e15;
  return is_whole ? fixed(value, 0) : significant(value, 4);
}

// Returns "wait: 12.3 s" for wait_seconds; the suffix of the name gives the unit.
Record evidence_of(const diagnosis::Evidence& evidence) {
  std::string name = evidence.name;
  std::string value = number_text(evidence.value);
  const auto take = [&name](std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    name.resize(name.size() - ending.size());
    return true;
  };
  if (take("_seconds")) {
    value = seconds_text(evidence.value);
  } else if (evidence.value >= 0 && evidence.value < 1e18 && take("_bytes")) {
    value = bytes_text(static_cast<std::uint64_t>(evidence.value));
  } else if (take("_share") || take("_fraction")) {
    value = percent_text(evidence.value, 1);
  }
  std::ranges::replace(name, '_', ' ');
  return {{"name", name}, {"value", value}};
}

Record finding_of(const Finding& f) {
  return {{"severity", metrics::severity_tag(f.severity)},
          {"title", shown_text(f.title)},
          {"cost", f.cost_seconds ? seconds_text(*f.cost_seconds) : ""},
          {"share", percent_text(f.cost_share, 1)},
          {"code", f.code},
          {"detail", shown_text(f.detail)},
          {"evidence", with_rows(list_of(f.evidence, evidence_of))},
          {"suggestion", shown_text(f.suggestion)}};
}

// --- The time budget.

// Adds a part of a bar, and of the legend below the bar.
void add_part(List& parts, std::string_view name, std::string_view css_class, double share,
              double seconds) {
  if (!(seconds > 0)) return;
  parts.push_back({{"class", css_class},
                   {"name", name},
                   {"width", fixed(100 * std::clamp(share, 0.0, 1.0), 2)},
                   {"title", ""},
                   {"share", percent_text(share, 1)},
                   {"seconds", seconds_text(seconds)},
                   {"most", ""}});
}

// Returns the class of a budget line's colour: the colour of the phase if the line is one.
std::string_view colour_of(std::string_view line) {
  if (line == "useful_compute") return "useful";
  if (line == "compute_overhead") return "ph1";
  if (line == "recompute") return "ph2";
  if (line == "data_stall") return "ph0";
  if (line == "exposed_communication") return "ph4";
  if (line == "waiting") return "waits";
  if (line == "control") return "ph5";
  return line == "other" ? "ph6" : "ph7";
}

List budget(const Analysis& analysis) {
  const auto& published = analysis.figures.efficiency;
  const bool is_own = analysis.rules == RuleSet::coxswain;
  if (!analysis.has_steps() || (!is_own && !published)) return {};
  const std::vector<BudgetLine>& lines = is_own ? analysis.budget.lines : published->lines;
  const auto mfu = is_own ? analysis.budget.mfu : published->mfu;
  List parts;
  for (const BudgetLine& line : lines) {
    std::string name = line.name;
    std::ranges::replace(name, '_', ' ');
    add_part(parts, name, colour_of(line.name), line.fraction, line.seconds);
  }
  const double wall = is_own ? analysis.budget.wall_seconds : published->wall_seconds;
  return {{{"wall", seconds_text(wall)},
           {"is_mean", analysis.run->ranks.size() > 1},
           {"mfu", mfu ? percent_text(*mfu, 1) : ""},
           {"flops_source", shown_text(analysis.flops_source)},
           {"counts_all", !mfu && is_own},
           {"segments", std::move(parts)}}};
}

List idle_time(const std::optional<diagnosis::IdleTime>& idle) {
  if (!idle || !(idle->watched_seconds > 0)) return {};
  List causes;
  for (std::size_t c = 0; c < diagnosis::kIdleCauses; ++c) {
    const double share = idle->seconds[c] / idle->watched_seconds;
    if (!(share > 0)) continue;
    causes.push_back({{"cause", to_string(static_cast<diagnosis::IdleCause>(c))},
                      {"seconds", seconds_text(idle->seconds[c])},
                      {"part", fixed(100 * share, 1)},
                      {"share", percent_text(share, 1)}});
  }
  const std::vector<diagnosis::IdleWait> waits = idle->longest_waits();
  return {{{"watched", seconds_text(idle->watched_seconds)},
           {"longest", waits.empty() ? "" : seconds_text(waits.front().seconds)},
           {"rank", waits.empty() ? 0 : waits.front().rank},
           {"causes", std::move(causes)}}};
}

List phases(const diagnosis::Timing& timing) {
  if (timing.phases.empty()) return {};
  List parts;
  for (const diagnosis::PhaseTime& phase : timing.phases) {
    constexpr std::array kNames = {"data", "forward",   "backward", "compute",
                                   "comm", "optimizer", "other"};
    const auto place = std::ranges::find(kNames, phase.name) - kNames.begin();
    add_part(parts, phase.name, concat("ph", place), phase.fraction, phase.seconds);
  }
  return {{{"mean", seconds_text(timing.mean_seconds)},
           {"p50", seconds_text(timing.p50_seconds)},
           {"p95", seconds_text(timing.p95_seconds)},
           {"rate", significant(timing.steps_per_second(), 3)},
           {"segments", std::move(parts)}}};
}

// --- Curves.

std::string title_of(const std::string& name) {
  if (name == "loss") return "Loss";
  if (name == "grad_norm") return "Gradient norm";
  if (name == "lr") return "Learning rate";
  return name;
}

RunAxis axis_of(const RankRecord& rank) {
  RunAxis axis{rank.steps.values(), {}};
  const std::vector<double> plans = values_of(rank.own, "plan", rank.size());
  for (std::size_t row = 1; row < plans.size(); ++row) {
    const bool is_known =
        !diagnosis::is_absent(plans[row]) && !diagnosis::is_absent(plans[row - 1]);
    if (is_known && plans[row] != plans[row - 1]) axis.marks.push_back(row);
  }
  return axis;
}

std::vector<RunCurve> curves_of(const RankRecord& rank) {
  std::vector<RunCurve> out;
  const auto add = [&](std::string title, CurveUnit unit, const diagnosis::Columns& columns,
                       std::string_view name) {
    if (out.size() == kMostCurves || find(columns, name) == nullptr) return;
    std::vector<double> values = values_of(columns, name, rank.size());
    const bool is_flat =
        std::ranges::all_of(values, [](double v) { return v == 0 || diagnosis::is_absent(v); });
    if (!is_flat) out.push_back({std::move(title), unit, std::move(values)});
  };
  add("Loss", CurveUnit::none, rank.scalars, "loss");
  out.push_back({"Step time", CurveUnit::seconds, row_sums(rank.phases, rank.size(), 0)});
  add("Waiting for the last rank", CurveUnit::seconds, rank.own, "waiting");
  add("Memory at its peak", CurveUnit::bytes, rank.memory, "peak_alloc");
  add("Peak that the plan predicts", CurveUnit::bytes, rank.memory, "predicted_peak");
  add("Memory left", CurveUnit::bytes, rank.own, "headroom");
  add("Loss scale", CurveUnit::none, rank.own, "loss_scale");
  add("Values that overflowed", CurveUnit::none, rank.own, "overflow");
  add("Recomputed blocks", CurveUnit::none, rank.own, "recomputed_blocks");
  for (const auto& [name, column] : rank.scalars) {
    if (name != "loss") add(title_of(name), CurveUnit::none, rank.scalars, name);
  }
  return out;
}

List curves(const RankRecord& rank) {
  const RunAxis axis = axis_of(rank);
  if (axis.rows() < 2) return {};
  List figures;
  for (const RunCurve& curve : curves_of(rank)) add_figure(figures, axis, curve);
  return {{{"rank", rank.rank},
           {"has_marks", !axis.marks.empty()},
           {"stretch", axis.per_bucket() > 1 ? std::to_string(axis.per_bucket()) : ""},
           {"rows", axis.rows()},
           {"per", axis.per_bucket()},
           {"steps", bucket_steps(axis)},
           {"figures", std::move(figures)}}};
}

// --- Ranks.

List rank_table(const Analysis& analysis) {
  const auto& d = analysis.figures.distributed;
  if (!d) return {};
  std::vector<diagnosis::RankFigures> ranks = d->ranks;
  if (ranks.size() > kMostRanks)
    std::ranges::stable_sort(ranks, std::greater<>(),
                             &diagnosis::RankFigures::median_compute_seconds);
  double most = 0;
  for (const auto& rank : ranks) most = std::max(most, rank.median_compute_seconds);
  const auto row_of = [most](const diagnosis::RankFigures& rank) {
    const double seconds = rank.median_compute_seconds;
    return Record{{"rank", rank.rank},
                  {"work", seconds_text(seconds)},
                  {"part", fixed(most > 0 ? 100 * seconds / most : 0, 1)},
                  {"last", percent_text(rank.slowest_fraction, 0)}};
  };
  return {{{"lost", percent_text(d->lost_fraction, 1)},
           {"rows", list_of(ranks, row_of, kMostRanks)},
           {"more", more_text(ranks.size(), kMostRanks)}}};
}

// --- Plans.

Record plan_of(const diagnosis::PlanEvent& event) {
  return {{"plan", event.plan},
          {"step", grouped(event.step)},
          {"round", event.round > 0 ? grouped(event.round) : ""},
          {"start", event.incarnation > 1 ? std::to_string(event.incarnation) : ""},
          {"changes", texts_of(event.changes, event.changes.size())},
          {"reasons", texts_of(event.reasons, event.reasons.size())}};
}

List plans(const diagnosis::PlanHistory& history) {
  if (history.events.empty() && history.gap.empty()) return {};
  return {{{"left_out", history.left_out > 0 ? grouped(history.left_out) : ""},
           {"gap", history.gap},
           {"plans", with_rows(list_of(history.events, plan_of))}}};
}

// --- Configuration, environment, and about the record.

void add_settings(List& tables, std::string_view title, const std::vector<RunSetting>& settings) {
  if (settings.empty()) return;
  const auto row_of = [](const RunSetting& setting) {
    return Record{{"key", shown_text(setting.key)}, {"value", shown_text(setting.json)}};
  };
  tables.push_back({{"title", title},
                    {"count", settings.size()},
                    {"settings", list_of(settings, row_of, kMostSettings)},
                    {"more", more_text(settings.size(), kMostSettings)}});
}

List settings(const RankRecord& rank) {
  List tables;
  add_settings(tables, "Configuration", rank.info.config);
  add_settings(tables, "Environment", rank.info.environment);
  return with_rows(std::move(tables));
}

// --- The page.

std::string about_run(const Analysis& analysis) {
  const diagnosis::RunInfo& info = analysis.run->lowest().info;
  std::string text = size_text(analysis);
  const bool is_date = info.started > 0 && info.started < 1e11;
  if (is_date) text += ", started " + metrics::utc_text(UnixTime{info.started});
  if (info.wall_seconds > 0) text += ", ran for " + duration_text(info.wall_seconds);
  return text;
}

}  // namespace

std::string analysis_page(const Analysis& analysis) {
  const diagnosis::RunRecord& run = *analysis.run;
  const RankRecord& rank = run.lowest();
  const std::vector<Finding>& findings = analysis.findings;
  const bool is_own = analysis.rules == RuleSet::coxswain;
  const RunView view = is_own ? analysis.view : diagnosis::view_of(run, std::nullopt);
  return metrics::render(
      "report.html",
      {{"run", run.name},
       {"name", rank.info.name == run.name ? "" : rank.info.name},
       {"about", about_run(analysis)},
       {"findings", with_rows(list_of(findings, finding_of, kMostFindings), findings.size())},
       {"budget", budget(analysis)},
       {"idle", idle_time(analysis.idle)},
       {"rank", rank.rank},
       {"phases", phases(analysis.figures.timing)},
       {"curves", curves(rank)},
       {"heat", run_heat_map(view)},
       {"lanes", phase_lanes(view)},
       {"ranks", rank_table(analysis)},
       {"plans", plans(run.plans)},
       {"settings", settings(rank)},
       {"gaps", texts_of(run.gaps, kMostSentences)}});
}

}  // namespace cox::tools
