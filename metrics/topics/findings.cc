#include "metrics/topics/findings.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/live_window.h"
#include "metrics/metric.h"

namespace cox::metrics {
namespace {

using diagnosis::Finding;
using diagnosis::Severity;

constexpr std::size_t kShown = 8;

bool is_active(const Snapshot& s, std::string_view code) {
  return std::ranges::find(s.view<FindingsView>().findings, code, &Finding::code) !=
         s.view<FindingsView>().findings.end();
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      gauge(
          "coxswain_finding_active", "",
          "1 while what the code stands for (docs/diagnosis.md) is found in the newest steps, "
          "else 0",
          per("code", diagnosis::own_codes(),
              [](S s, std::size_t c) { return is_active(s, diagnosis::own_codes()[c]) ? 1 : 0; })),
      gauge("coxswain_finding_look_duration_seconds", "seconds",
            "What the newest look for findings took, on a thread of its own",
            value(&FindingsView::look_seconds)),
  };
}

Result<std::string> findings_json(const Snapshot& s, std::string_view) {
  const FindingsView& view = s.view<FindingsView>();
  io::JsonWriter json;
  json.begin_object().field("time", view.time.seconds).field("look_seconds", view.look_seconds);
  json.key("window").begin_object().field("ranks", view.ranks).field("steps", view.steps);
  json.field("first_step", view.first_step).field("last_step", view.last_step);
  json.field("wall_seconds", view.wall_seconds);
  json.field("most_steps", window_rounds(static_cast<std::size_t>(s.job->world_size)));
  json.end_object().key("findings").begin_array();
  for (const Finding& finding : view.findings) put_finding(json, finding);
  json.end_array().end_object();
  return json.take();
}

Record row_of(const Finding& finding) {
  const bool has_cost = finding.cost_seconds && finding.cost_share > 0;
  return {{"severity", severity_tag(finding.severity)},
          {"title", finding.title},
          {"code", finding.code},
          {"detail", finding.detail},
          {"suggestion", finding.suggestion},
          {"cost", has_cost ? seconds_text(*finding.cost_seconds) : ""},
          {"share", percent_text(finding.cost_share, 1)}};
}

Record section(const Snapshot& s) {
  const FindingsView& view = s.view<FindingsView>();
  if (view.time.seconds <= 0) return {};
  const bool is_early = view.steps < diagnosis::kLeastSteps;
  return {{"first_step", grouped(static_cast<std::uint64_t>(view.first_step))},
          {"last_step", grouped(static_cast<std::uint64_t>(view.last_step))},
          {"least_steps", is_early ? std::to_string(diagnosis::kLeastSteps) : ""},
          {"is_clean", !is_early && view.findings.empty()},
          {"findings", is_early ? List() : with_rows(list_of(view.findings, row_of, kShown))}};
}

}  // namespace

Record severity_tag(Severity severity) {
  constexpr std::array<std::string_view, 3> kClasses = {"bad", "warn", ""};
  constexpr std::array<std::string_view, 3> kWords = {"high", "medium", "low"};
  const auto place = static_cast<std::size_t>(severity);
  return tag(kClasses[place], kWords[place]);
}

Topic findings_topic() {
  return {.title = "Findings",
          .metrics = metrics,
          .documents = {{"/api/v1/findings",
                         "what the newest steps lost, why, and what to change; dearest first",
                         findings_json}},
          .sections = {{"findings.html", section}}};
}

}  // namespace cox::metrics
