#include "metrics/topics/control.h"

#include <cmath>
#include <string>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
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
  std::string out = "<section class=\"card\"><h2>Control plane</h2><dl class=\"facts\">";
  out += fact("Time to decide", seconds_text(mean) + " on average");
  out += fact("Reports that did not arrive", grouped(c.missing_reports));
  out += fact("Stale, duplicate, damaged", grouped(c.stale_reports) + ", " +
                                               grouped(c.duplicate_reports) + ", " +
                                               grouped(c.damaged_reports));
  out += fact("Control traffic",
              bytes_text(c.signal_bytes) + " up, " + bytes_text(c.mask_bytes) + " down");
  out += fact("Journal", bytes_text(c.journal_bytes));
  out += fact("Skipped steps, roll-backs",
              grouped(progress.skipped_rounds) + ", " + grouped(progress.rollbacks));
  out += fact("Gradient norm", std::isnan(s.summary.gradient_norm)
                                   ? "not measured"
                                   : significant(s.summary.gradient_norm, 4));
  return out + "</dl></section>";
}

}  // namespace

Topic control_topic() {
  return {.title = "Control plane", .metrics = metrics, .sections = {{control_section}}};
}

}  // namespace cox::metrics
