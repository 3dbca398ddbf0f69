#include "metrics/status_page.h"

#include <algorithm>
#include <cmath>

#include "metrics/format.h"
#include "metrics/health.h"
#include "metrics/html.h"
#include "metrics/page_style.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

constexpr int kRefreshSeconds = 5;

std::string tag(std::string_view css_class, std::string_view text) {
  return "<span class=\"tag " + std::string(css_class) + "\">" + escape(text) + "</span>";
}

std::string state_tag(const Served& served) {
  const Snapshot& s = *served.snapshot;
  if (s.state == JobState::waiting) return tag("", "◌ waiting for the first round");
  if (s.state == JobState::finished) return tag("", "■ finished");
  if (!liveness(s, served.now).good()) return tag("bad", "▲ stalled");
  return tag("good", "● training");
}

std::string footer(const Served& served) {
  std::string out = "<footer><span>Coxswain " + escape(served.build.version);
  if (!served.build.revision.empty()) out += " (" + escape(served.build.revision) + ")";
  out += "</span>";
  for (const char* path : {"/api/v1/status", "/api/v1/ranks", "/api/v1/plan", "/api/v1/numerics",
                           "/api/v1/decisions", "/api/v1/config", "/metrics", "/"}) {
    const std::string name = std::string(path) == "/" ? "all pages" : path;
    out += "<a href=\"" + std::string(path) + "\">" + name + "</a>";
  }
  return out + "</footer>";
}

std::string note(std::string_view css_class, std::string_view text) {
  return "<p class=\"note " + std::string(css_class) + "\" role=\"status\">" + escape(text) +
         "</p>";
}

// "Round 180, step 180, closed 0 s ago. 4 of 4 ranks reporting. Plan 2. "
std::string progress(const Served& served) {
  const Snapshot& s = *served.snapshot;
  const double ago = std::max(0.0, served.now.seconds - s.last_round_time.seconds);
  std::string out = "Round " + grouped(s.summary.round.value()) + ", step " +
                    grouped(s.summary.step.value()) + ", closed " + duration_text(ago) + " ago. ";
  const RankCounts counts = rank_counts(s);
  const auto world = static_cast<std::uint64_t>(s.job->world_size);
  const auto missing = static_cast<std::uint64_t>(counts.missing);
  out += grouped(world - missing) + " of " + grouped(world) + " ranks reporting";
  if (missing > 0) out += ", <strong>" + grouped(missing) + " missing</strong>";
  return out + ". Plan " + grouped(s.plan->id.number) + ". ";
}

}  // namespace

std::string page_header(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string out = "<header class=\"top\"><div class=\"line\">" + std::string(page_mark()) +
                    "<h1>" + escape(s.job->name) + "</h1>" + state_tag(served) +
                    "</div><p class=\"meta\">";
  if (s.state != JobState::waiting) out += progress(served);
  out += "Running for " + duration_text(std::max(0.0, served.now.seconds - s.started.seconds));
  if (s.job->incarnation > 1) out += ", start " + std::to_string(s.job->incarnation);
  return out + ". " + utc_text(served.now) + "</p></header>";
}

std::string page_notes(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string out;
  const Health live = liveness(s, served.now);
  if (!live.good()) out += note("bad", live.reason);
  if (s.state != JobState::finished && !readiness(s).good()) out += note("", readiness(s).reason);
  if (s.state != JobState::waiting && s.summary.nonfinite_ranks > 0) {
    const std::string first = std::to_string(s.summary.first_nonfinite_rank.value());
    const std::string who = s.summary.nonfinite_ranks == 1
                                ? "Rank " + first
                                : std::to_string(s.summary.nonfinite_ranks) +
                                      " ranks (the first is rank " + first + ")";
    out += note("bad", who + " had a loss or gradient that is not finite in this round");
  }
  if (s.totals.control.journal_errors > 0)
    out += note("",
                grouped(s.totals.control.journal_errors) +
                    " journal records could not be written; the job cannot be replayed completely");
  return out;
}

std::string page_control(const Snapshot& s) {
  const ControlCounters& c = s.totals.control;
  const auto fact = [](std::string_view name, const std::string& value) {
    return "<div><dt>" + std::string(name) + "</dt><dd>" + value + "</dd></div>";
  };
  const BucketCounts& decide = s.totals.decide_seconds;
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
              grouped(s.totals.skipped_rounds) + ", " + grouped(s.totals.rollbacks));
  out += fact("Gradient norm", std::isnan(s.summary.gradient_norm)
                                   ? "not measured"
                                   : significant(s.summary.gradient_norm, 4));
  return out + "</dl></section>";
}

std::string status_page(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string body = "<main class=\"page\">" + page_header(served) + page_notes(served);
  body += page_tiles(s);
  if (s.state != JobState::waiting) {
    body += page_phases(s.summary);
    body += "<div class=\"pair\">" + page_ranks(s) + page_plan(s) + "</div>";
    body += page_parallel(s);
    body += page_memory(s);
    body += page_numerics(s);
  }
  body += page_decisions(s);
  if (s.state != JobState::waiting) body += page_control(s);
  body += footer(served) + "</main>";
  const int refresh = s.state == JobState::finished ? 6 * kRefreshSeconds : kRefreshSeconds;
  return html_document(s.job->name + " · Coxswain", refresh, body);
}

}  // namespace cox::metrics
