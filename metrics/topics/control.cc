#include "metrics/topics/control.h"

#include <cmath>
#include <string>
#include <vector>

#include "metrics/format.h"
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

Record control_section(const Snapshot& s) {
  const ControlCounters& c = s.control;
  const ProgressView& progress = s.view<ProgressView>();
  const BucketCounts& decide = s.view<DecisionsView>().decide_seconds;
  const double mean = decide.count() > 0 ? decide.sum() / static_cast<double>(decide.count()) : 0;
  const double norm = s.summary.gradient_norm;
  return {{"decide", seconds_text(mean)},
          {"missing", grouped(c.missing_reports)},
          {"stale", grouped(c.stale_reports)},
          {"duplicate", grouped(c.duplicate_reports)},
          {"damaged", grouped(c.damaged_reports)},
          {"up", bytes_text(c.signal_bytes)},
          {"down", bytes_text(c.mask_bytes)},
          {"journal", bytes_text(c.journal_bytes)},
          {"skipped", grouped(progress.skipped_rounds)},
          {"rollbacks", grouped(progress.rollbacks)},
          {"norm", std::isnan(norm) ? "not measured" : significant(norm, 4)}};
}

}  // namespace

Topic control_topic() {
  return {.title = "Control plane",
          .metrics = metrics,
          .sections = {{"control.html", control_section}}};
}

}  // namespace cox::metrics
