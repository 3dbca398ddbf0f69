// The page of `cox report` and `cox analyze --html`: everything is inline, so that the file opens
// from a disk in years and can be sent to somebody.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/command/analysis_report.h"
#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/topics/findings.h"

namespace cox::tools {
namespace {

using diagnosis::BudgetLine;
using diagnosis::Finding;
using diagnosis::RankRecord;
using diagnosis::RunSetting;
using diagnosis::RunView;
using metrics::card;
using metrics::escape;

// What a page has room for; the rest is counted.
constexpr std::size_t kMostFindings = 100;
constexpr std::size_t kMostSentences = 50;
constexpr std::size_t kMostSettings = 400;
constexpr std::size_t kMostCurves = 24;
constexpr std::size_t kMostRanks = 64;
constexpr std::size_t kMostBytes = 600;  // of one text

constexpr std::string_view kStyle = R"css(
.finding{border-top:1px solid var(--line);padding:11px 0 10px}.finding:first-of-type{margin-top:8px}
.finding:last-child{padding-bottom:0}
.finding h3{font-size:15px;font-weight:620;margin:0;display:flex;flex-wrap:wrap;gap:4px 9px;align-items:center;overflow-wrap:anywhere}
.finding p{margin-top:3px;overflow-wrap:anywhere}.finding .do{font-weight:550}.finding .do::before{content:"→ "}
.finding .hint{display:flex;flex-wrap:wrap;gap:2px 14px}
.useful{background:var(--good)}.waits{background:repeating-linear-gradient(135deg,var(--bad) 0 2px,var(--bad-bg) 2px 5px)}
.plans .when{white-space:nowrap;color:var(--soft)}.plans ul{margin:0;padding-left:16px}.plans td{vertical-align:top;overflow-wrap:anywhere}
.settings td{overflow-wrap:anywhere}.settings td:first-child{min-width:130px}details+details{margin-top:8px}
@media (max-width:560px){.plans thead{display:none}.plans tr{display:block;padding:6px 0;border-top:1px solid var(--line)}
.plans td{display:block;border:0;padding:2px 0;text-align:left}.plans td:first-child::before{content:"Plan "}.plans .when br{display:none}}
)css";

std::string shown_text(std::string_view text) {
  if (text.size() <= kMostBytes) return escape(text);
  return escape(text.substr(0, kMostBytes)) + "…";
}

std::string hint(const std::string& text) {
  return "<p class=\"hint\">" + text + "</p>";
}

std::string left_out(std::size_t count, std::size_t most, std::string_view what) {
  return count > most ? hint(fmt::format("and {} {} more", grouped(count - most), what)) : "";
}

// --- Findings.

std::string number_text(double value) {
  const bool is_whole = value == std::trunc(value) && std::fabs(value) < 1e15;
  return is_whole ? fixed(value, 0) : significant(value, 4);
}

// "wait: 12.3 s" for wait_seconds, by the unit that the name ends in.
std::string evidence_text(const diagnosis::Evidence& evidence) {
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
  return fmt::format("<span>{}: {}</span>", escape(name), value);
}

std::string finding_html(const Finding& f) {
  std::string out = fmt::format("<article class=\"finding\"><h3>{} <span>{}</span></h3>",
                                metrics::severity_tag(f.severity), shown_text(f.title));
  out += "<p class=\"hint\">";
  if (f.cost_seconds)
    out += fmt::format("<span>costs {}, {} of wall time</span>", seconds_text(*f.cost_seconds),
                       percent_text(f.cost_share, 1));
  out += fmt::format("<span>{}</span></p><p>{}</p>", escape(f.code), shown_text(f.detail));
  if (!f.evidence.empty()) out += "<p class=\"hint\">";
  for (const diagnosis::Evidence& evidence : f.evidence) out += evidence_text(evidence);
  if (!f.evidence.empty()) out += "</p>";
  return fmt::format("{}<p class=\"do\">{}</p></article>", out, shown_text(f.suggestion));
}

std::string findings(const Analysis& analysis) {
  const std::vector<Finding>& all = analysis.findings;
  if (all.empty()) return hint("None: no rule found anything that is worth a change.");
  std::string out = hint("What costs most comes first.");
  for (std::size_t i = 0; i < std::min(all.size(), kMostFindings); ++i) out += finding_html(all[i]);
  return out + left_out(all.size(), kMostFindings, "findings");
}

// --- Where the time went.

// A part of a bar, and of the legend below it.
struct Part {
  std::string name;
  std::string css_class;
  double share = 0;
  double seconds = 0;
};

std::string stacked_bar(const std::vector<Part>& parts) {
  std::string bar;
  std::string legend;
  for (const Part& part : parts) {
    if (!(part.seconds > 0)) continue;
    bar += fmt::format("<i class=\"{}\" style=\"width:{}%\"></i>", part.css_class,
                       fixed(100 * std::clamp(part.share, 0.0, 1.0), 2));
    legend += fmt::format(
        "<li><span class=\"key {}\"></span><span>{}</span><small>{}, {}</small></li>",
        part.css_class, escape(part.name), percent_text(part.share, 1), seconds_text(part.seconds));
  }
  return fmt::format("<div class=\"bar\" aria-hidden=\"true\">{}</div><ul class=\"legend\">{}</ul>",
                     bar, legend);
}

// The colours of phases, where a line of the budget is one.
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

std::string budget(const Analysis& analysis) {
  const auto& published = analysis.figures.efficiency;
  const bool is_own = analysis.rules == RuleSet::coxswain;
  if (!analysis.has_steps() || (!is_own && !published)) return {};
  const std::vector<BudgetLine>& lines = is_own ? analysis.budget.lines : published->lines;
  const double wall = is_own ? analysis.budget.wall_seconds : published->wall_seconds;
  const auto mfu = is_own ? analysis.budget.mfu : published->mfu;
  std::vector<Part> parts;
  for (const BudgetLine& line : lines) {
    std::string name = line.name;
    std::ranges::replace(name, '_', ' ');
    parts.push_back({name, std::string(colour_of(line.name)), line.fraction, line.seconds});
  }
  std::string text = fmt::format("{} of wall time{}. ", seconds_text(wall),
                                 analysis.run->ranks.size() > 1 ? ", mean of the ranks" : "");
  if (mfu)
    text += fmt::format("MFU {}. {}", percent_text(*mfu, 1), shown_text(analysis.flops_source));
  else if (is_own)
    text +=
        "All that the model computes counts as useful: FLOPs or the peak of the device are not "
        "known.";
  return hint(text) + stacked_bar(parts);
}

std::string idle_time(const std::optional<diagnosis::IdleTime>& idle) {
  if (!idle || !(idle->watched_seconds > 0)) return {};
  metrics::Table table({"Cause", "Seconds/n", "", "Of the time/n"}, "dense");
  for (std::size_t c = 0; c < diagnosis::kIdleCauses; ++c) {
    const double share = idle->seconds[c] / idle->watched_seconds;
    if (!(share > 0)) continue;
    table.add({std::string(to_string(static_cast<diagnosis::IdleCause>(c))),
               seconds_text(idle->seconds[c]), metrics::meter(100 * share, "ph1"),
               percent_text(share, 1)});
  }
  std::string text = fmt::format("Of {}, mean of the ranks", seconds_text(idle->watched_seconds));
  const std::vector<diagnosis::IdleWait> waits = idle->longest_waits();
  if (!waits.empty())
    text += fmt::format("; longest for rank {}, {}", waits.front().rank,
                        seconds_text(waits.front().seconds));
  return hint(text + ".") + table.html();
}

std::string phases(const diagnosis::Timing& timing) {
  if (timing.phases.empty()) return {};
  std::vector<Part> parts;
  for (const diagnosis::PhaseTime& phase : timing.phases) {
    constexpr std::array kNames = {"data", "forward",   "backward", "compute",
                                   "comm", "optimizer", "other"};
    const auto place = std::ranges::find(kNames, phase.name) - kNames.begin();
    parts.push_back({phase.name, fmt::format("ph{}", place), phase.fraction, phase.seconds});
  }
  return hint(fmt::format("{} each, median {}, 95th percentile {}; {} a second. Waiting for others "
                          "counts as communication (comm).",
                          seconds_text(timing.mean_seconds), seconds_text(timing.p50_seconds),
                          seconds_text(timing.p95_seconds),
                          significant(timing.steps_per_second(), 3))) +
         stacked_bar(parts);
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

constexpr std::string_view kTools =
    "<div class=\"tools\" hidden=\"hidden\" role=\"group\" aria-label=\"Zoom\">"
    "<button type=\"button\" value=\"in\">Zoom in</button>"
    "<button type=\"button\" value=\"out\">Zoom out</button>"
    "<button type=\"button\" value=\"left\" aria-label=\"Earlier steps\">◀</button>"
    "<button type=\"button\" value=\"right\" aria-label=\"Later steps\">▶</button>"
    "<button type=\"button\" value=\"all\">Whole run</button><output></output></div>";

std::string curves(const RankRecord& rank) {
  const RunAxis axis = axis_of(rank);
  if (axis.rows() < 2) return {};
  std::string figures;
  for (const RunCurve& curve : curves_of(rank)) figures += curve_figure(axis, curve);
  std::string text =
      fmt::format("Rank {}, warm-up included; drag over a curve to look closer. ", rank.rank);
  if (!axis.marks.empty()) text += "Dashed: another plan took over. ";
  if (axis.per_bucket() > 1)
    text += fmt::format("Drawn from stretches of {} steps, each with its least and largest value.",
                        axis.per_bucket());
  return hint(text) + std::string(kTools) +
         fmt::format("<div class=\"curves\"{}>{}</div>", axis_attributes(axis), figures);
}

// --- Ranks.

std::string rank_table(const Analysis& analysis) {
  const auto& d = analysis.figures.distributed;
  if (!d) return {};
  std::vector<diagnosis::RankFigures> ranks = d->ranks;
  if (ranks.size() > kMostRanks)
    std::ranges::stable_sort(ranks, std::greater<>(),
                             &diagnosis::RankFigures::median_compute_seconds);
  double most = 0;
  for (const auto& rank : ranks) most = std::max(most, rank.median_compute_seconds);
  metrics::Table table({"Rank/n", "Own work, median/n", "", "Last to arrive/n"}, "dense");
  for (std::size_t r = 0; r < std::min(ranks.size(), kMostRanks); ++r) {
    const double seconds = ranks[r].median_compute_seconds;
    table.add({std::to_string(ranks[r].rank), seconds_text(seconds),
               metrics::meter(most > 0 ? 100 * seconds / most : 0, "ph1"),
               percent_text(ranks[r].slowest_fraction, 0)});
  }
  return hint(fmt::format("Own work is all of a step but communication. {} of the time is lost to "
                          "ranks that differ.",
                          percent_text(d->lost_fraction, 1))) +
         table.html() + left_out(ranks.size(), kMostRanks, "ranks that are quicker");
}

// --- Plans.

std::string lines_of(const std::vector<std::string>& lines) {
  std::string out = "<ul>";
  for (const std::string& line : lines) out += "<li>" + shown_text(line) + "</li>";
  return lines.empty() ? "" : out + "</ul>";
}

std::string when_of(const diagnosis::PlanEvent& event) {
  if (event.round == 0) return "at the start";
  return fmt::format("step {},<br/> round {}", grouped(event.step), grouped(event.round));
}

std::string plans(const diagnosis::PlanHistory& history) {
  if (history.events.empty() && history.gap.empty()) return {};
  metrics::Table table({"Plan/n", "Went out", "What changed", "Why"}, "dense plans");
  for (const diagnosis::PlanEvent& event : history.events) {
    const std::string start =
        event.incarnation > 1 ? fmt::format("<br/>start {}", event.incarnation) : "";
    table.add({std::to_string(event.plan),
               "<span class=\"when\">" + when_of(event) + start + "</span>",
               event.changes.empty() ? "nothing that acts" : lines_of(event.changes),
               lines_of(event.reasons)});
  }
  std::string out = hint("From the journal; <code>cox replay</code> has every decision.");
  if (history.left_out > 0)
    out += hint(fmt::format("{} plans between the first and the newest are left out.",
                            grouped(history.left_out)));
  if (!history.gap.empty()) out += metrics::note("", history.gap);
  return out + (history.events.empty() ? "" : table.html());
}

// --- Configuration, environment, and about the record.

std::string setting_table(std::string_view title, const std::vector<RunSetting>& settings) {
  if (settings.empty()) return {};
  metrics::Table table({"Name", "Value"}, "dense settings");
  for (std::size_t i = 0; i < std::min(settings.size(), kMostSettings); ++i)
    table.add({shown_text(settings[i].key), shown_text(settings[i].json)});
  return fmt::format("<details><summary>{}, {} entries</summary>{}{}</details>", title,
                     settings.size(), table.html(),
                     left_out(settings.size(), kMostSettings, "entries"));
}

std::string settings(const RankRecord& rank) {
  const std::string tables = setting_table("Configuration", rank.info.config) +
                             setting_table("Environment", rank.info.environment);
  return tables.empty() ? "" : hint(fmt::format("As rank {} recorded them.", rank.rank)) + tables;
}

std::string about_record(const diagnosis::RunRecord& run) {
  if (run.gaps.empty()) return {};
  std::string out = "<ul class=\"plain\">";
  for (std::size_t i = 0; i < std::min(run.gaps.size(), kMostSentences); ++i)
    out += "<li>" + shown_text(run.gaps[i]) + "</li>";
  return out + "</ul>" + left_out(run.gaps.size(), kMostSentences, "remarks");
}

// --- The page.

std::string head_of(const Analysis& analysis) {
  const diagnosis::RunRecord& run = *analysis.run;
  const diagnosis::RunInfo& info = run.lowest().info;
  std::string text = size_text(analysis);
  const bool is_date = info.started > 0 && info.started < 1e11;
  if (is_date) text += ", started " + metrics::utc_text(UnixTime{info.started});
  if (info.wall_seconds > 0) text += ", ran for " + duration_text(info.wall_seconds);
  const std::string name = info.name.empty() || info.name == run.name
                               ? escape(run.name)
                               : escape(run.name) + " · " + escape(info.name);
  return fmt::format(
      "<header class=\"top\"><div class=\"line\">{}<h1>{}</h1></div><p class=\"meta\">{}.</p>"
      "</header>",
      metrics::page_mark(), name, text);
}

std::string policy() {
  return fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:; script-src 'sha256-{}'\"/><style>{}{}</style>",
      kChartScriptHash, kChartStyle, kStyle);
}

}  // namespace

std::string analysis_page(const Analysis& analysis) {
  const RankRecord& rank = analysis.run->lowest();
  const bool is_own = analysis.rules == RuleSet::coxswain;
  const RunView view = is_own ? analysis.view : diagnosis::view_of(*analysis.run, std::nullopt);
  std::string body = "<main class=\"page\">" + head_of(analysis);
  body += card("Findings", findings(analysis));
  body += card("Where the time went", budget(analysis));
  body += card("Idle time", idle_time(analysis.idle));
  body += card(fmt::format("A step of rank {}", rank.rank), phases(analysis.figures.timing));
  body += card("Over the run", curves(rank));
  body += card("Ranks over steps", run_heat_map(view));
  body += card("Timeline", phase_lanes(view));
  body += card("Ranks", rank_table(analysis));
  body += card("Plans", plans(analysis.run->plans));
  body += card("Settings", settings(rank));
  body += card("About the record", about_record(*analysis.run));
  body += "<footer><span>cox report</span><span>Definitions: docs/diagnosis.md</span></footer>";
  body += fmt::format("</main><script>{}</script>", kChartScript);
  return metrics::html_document(analysis.run->name + " · report", policy(), body);
}

}  // namespace cox::tools
