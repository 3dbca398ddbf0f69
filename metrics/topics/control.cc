#include "metrics/topics/control.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/metric.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/progress.h"

namespace cox::metrics {
namespace {

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      counter("coxswain_report_faults_total",
              "Reports of ranks that did not count, by what was wrong with them; those of another "
              "incarnation count as damaged",
              cases("fault", {{"missing", [](S s) { return s.control.missing_reports; }},
                              {"duplicate", [](S s) { return s.control.duplicate_reports; }},
                              {"stale", [](S s) { return s.control.stale_reports; }},
                              {"damaged", [](S s) { return s.control.damaged_reports; }}})),
      counter("coxswain_full_plans_resent_total",
              "Whole plans sent again because a rank had lost track",
              value([](S s) { return s.control.full_plans_resent; })),
      counter("coxswain_wire_bytes_total", "Control bytes; up are reports of ranks, down are masks",
              cases("direction", {{"up", [](S s) { return s.control.signal_bytes; }},
                                  {"down", [](S s) { return s.control.mask_bytes; }}}),
              "bytes"),
      counter("coxswain_journal_bytes_total", "Bytes written to the journal",
              value([](S s) { return s.control.journal_bytes; }), "bytes"),
      counter("coxswain_journal_errors_total", "Journal records that could not be written",
              value([](S s) { return s.control.journal_errors; })),
      gauge("coxswain_build_info", "", "Always 1; carries the version",
            open({{"version", {}}, {"revision", {}}},
                 [](S s, const Emit& emit) { emit(1, s.build.version, s.build.revision); })),
  };
}

std::string control_section(const Snapshot& s) {
  const ControlCounters& c = s.control;
  const ProgressView& progress = s.view<ProgressView>();
  const BucketCounts& decide = s.view<DecisionsView>().decide_seconds;
  const double mean = decide.count() > 0 ? decide.sum() / static_cast<double>(decide.count()) : 0;
  const std::string norm = std::isnan(s.summary.gradient_norm)
                               ? "not measured"
                               : significant(s.summary.gradient_norm, 4);
  return card("Control plane",
              facts({{"Time to decide", seconds_text(mean) + " on average"},
                     {"Reports that did not arrive", grouped(c.missing_reports)},
                     {"Stale, duplicate, damaged",
                      fmt::format("{}, {}, {}", grouped(c.stale_reports),
                                  grouped(c.duplicate_reports), grouped(c.damaged_reports))},
                     {"Control traffic", fmt::format("{} up, {} down", bytes_text(c.signal_bytes),
                                                     bytes_text(c.mask_bytes))},
                     {"Journal", bytes_text(c.journal_bytes)},
                     {"Skipped steps, roll-backs",
                      grouped(progress.skipped_rounds) + ", " + grouped(progress.rollbacks)},
                     {"Gradient norm", norm}}));
}

}  // namespace

Topic control_topic() {
  return {.title = "Control plane", .metrics = metrics, .sections = {{control_section}}};
}

}  // namespace cox::metrics
