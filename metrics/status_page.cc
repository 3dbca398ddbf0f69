#include "metrics/status_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/words.h"
#include "metrics/catalogue.h"
#include "metrics/format.h"
#include "metrics/health.h"
#include "metrics/html.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

std::string state_tag(const Served& served) {
  const Snapshot& s = *served.snapshot;
  if (s.state == JobState::waiting) return tag("", "◌ waiting for the first round");
  if (s.state == JobState::finished) return tag("", "■ finished");
  if (!liveness(s, served.now).good()) return tag("bad", "▲ stalled");
  if (const auto* view = s.views.find<StallView>())
    return tag("warn", view->stall.is_save() ? "◌ saving" : "◌ waiting");
  return tag("good", "● training");
}

std::string link(std::string_view path, std::string_view name) {
  return fmt::format("<a href=\"{}\">{}</a>", path, name);
}

std::string footer(const Snapshot& s) {
  std::string out = "<footer><span>Coxswain " + escape(s.build.version);
  if (!s.build.revision.empty()) out += " (" + escape(s.build.revision) + ")";
  out += "</span>";
  for (const char* path : {"/api/v1/status", "/api/v1/config"}) out += link(path, path);
  for (const Topic& topic : topics()) {
    for (const Document& document : topic.documents) out += link(document.path, document.path);
  }
  return fmt::format("{}{}{}</footer>", out, link("/metrics", "/metrics"), link("/", "all pages"));
}

std::string plan_number(const Snapshot& s) {
  return grouped(s.plan->id.number);
}

// "Round 180, step 180, closed 0 s ago. 4 of 4 ranks reporting. Plan 2. "; of a job that has ended
// "Round 600, step 600. Plan 5. "
std::string progress(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string out = fmt::format("Round {}, step {}", grouped(s.summary.round.value()),
                                grouped(s.summary.step.value()));
  if (s.last_step > 0) out += " of " + grouped(s.last_step);
  if (s.state == JobState::finished) return fmt::format("{}. Plan {}. ", out, plan_number(s));
  const double ago = std::max(0.0, served.now.seconds - s.last_round_time.seconds);
  out += fmt::format(", closed {} ago. ", duration_text(ago));
  const RankCounts counts = rank_counts(s);
  const auto world = static_cast<std::uint64_t>(s.job->world_size);
  const auto missing = static_cast<std::uint64_t>(counts.missing);
  out += fmt::format("{} of {} ranks reporting", grouped(world - missing), grouped(world));
  if (missing > 0) out += ", <strong>" + grouped(missing) + " missing</strong>";
  return fmt::format("{}. Plan {}. ", out, plan_number(s));
}

std::string header(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string out = fmt::format(
      "<header class=\"top\"><div class=\"line\">{}<h1>{}</h1>{}</div><p class=\"meta\">",
      page_mark(), escape(s.job->name), state_tag(served));
  if (s.state != JobState::waiting) out += progress(served);
  const bool is_over = s.state == JobState::finished;
  const UnixTime until = is_over ? s.last_round_time : served.now;
  out += is_over ? "Ran for " : "Running for ";
  out += duration_text(std::max(0.0, until.seconds - s.started.seconds));
  if (is_over) out += ", ended " + utc_text(until);
  if (const auto left = seconds_left(s)) out += ", about " + duration_text(*left) + " left";
  if (s.job->incarnation > 1) out += ", start " + std::to_string(s.job->incarnation);
  return fmt::format("{}. {}</p></header>", out, is_over ? "" : utc_text(served.now));
}

// "Rank 1 is in backward of step 212 ...".
std::string sentence_of(const StallView& stall) {
  const std::string text = stall.text();
  return upper_case(text.substr(0, 1)) + text.substr(1);
}

// The parts of the job that need attention; empty on a good day.
std::string attention(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string out;
  const Health live = liveness(s, served.now);
  if (!live.good()) out += note("bad", live.reason);
  if (s.state == JobState::finished)
    out += note("calm", "The job has ended. These are its last values; the page stays as it is.");
  const auto* stall = s.views.find<StallView>();
  if (live.good() && stall != nullptr)
    out += note(stall->stall.is_save() ? "" : "bad", sentence_of(*stall));
  if (s.state != JobState::finished && !readiness(s).good()) out += note("", readiness(s).reason);
  if (s.state != JobState::waiting && s.summary.nonfinite_ranks > 0) {
    const std::string first = std::to_string(s.summary.first_nonfinite_rank.value());
    const std::string who = s.summary.nonfinite_ranks == 1
                                ? "Rank " + first
                                : std::to_string(s.summary.nonfinite_ranks) +
                                      " ranks (the first is rank " + first + ")";
    out += note("bad", who + " had a loss or gradient that is not finite in this round");
  }
  if (s.control.journal_errors > 0)
    out += note("",
                grouped(s.control.journal_errors) +
                    " journal records could not be written; the job cannot be replayed completely");
  return out;
}

// A part of the page that changes by itself.
struct PagePart {
  std::string id;
  std::string html;
};

// The sections of all topics, a part for each; halves in a row are one part, side by side. The same
// number of parts at any time.
void add_sections(const Snapshot& s, std::vector<PagePart>& to) {
  std::size_t parts = 0;
  bool is_row = false;  // of halves, which the last part is
  const auto end_row = [&] {
    if (is_row && !to.back().html.empty())
      to.back().html = "<div class=\"pair\">" + to.back().html + "</div>";
    is_row = false;
  };
  for (const Topic& topic : topics()) {
    for (const Section& section : topic.sections) {
      const bool is_half = section.width == Section::Width::half;
      if (!is_half) end_row();
      if (!is_row) to.push_back({fmt::format("part-{}", parts++), ""});
      is_row = is_half;
      const bool is_shown = s.state != JobState::waiting || section.shown == Section::Shown::always;
      if (is_shown) to.back().html += section.html(s);
    }
  }
  end_row();
}

std::vector<PagePart> parts_of(const Served& served) {
  std::vector<PagePart> out = {{"part-head", header(served)},
                               {"part-attention", attention(served)}};
  add_sections(*served.snapshot, out);
  return out;
}

std::string title(const Snapshot& s) {
  return s.job->name + (s.state == JobState::finished ? " · finished" : "") + " · Coxswain";
}

}  // namespace

std::string refresh_element() {
  return fmt::format("<meta http-equiv=\"refresh\" content=\"{}\"/>", kStatusRefresh.count());
}

std::string status_page(const Served& served) {
  const Snapshot& s = *served.snapshot;
  std::string body = "<main class=\"page\">";
  for (const PagePart& part : parts_of(served))
    body += fmt::format("<div class=\"live\" id=\"{}\">{}</div>", part.id, part.html);
  body += footer(s) + "</main>";
  std::string head;
  if (s.state != JobState::finished)
    head = fmt::format("<noscript>{}</noscript><script src=\"{}\" defer=\"defer\"></script>",
                       refresh_element(), kStatusScriptPath);
  return html_document(title(s), head, body);
}

std::vector<EventPart> page_events(const Served& served) {
  std::vector<EventPart> out = {{"part", "title\n" + escape(title(*served.snapshot))}};
  for (const PagePart& part : parts_of(served)) out.push_back({"part", part.id + "\n" + part.html});
  return out;
}

std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints) {
  std::string body =
      "<main class=\"page narrow\"><header class=\"top\"><div class=\"line\">" +
      std::string(page_mark()) + "<h1>" + escape(served.snapshot->job->name) +
      "</h1></div><p class=\"meta\">Coxswain " + escape(served.snapshot->build.version) +
      ", rank 0 of " + std::to_string(served.snapshot->job->world_size) +
      ". All pages are read-only.</p></header><section class=\"card\"><dl class=\"links\">";
  for (const Endpoint& endpoint : endpoints) {
    body += fmt::format("<dt><a href=\"{}\">{}</a></dt><dd>{}</dd>", endpoint.path, endpoint.path,
                        escape(endpoint.help));
  }
  return html_document("Coxswain: " + served.snapshot->job->name, "",
                       body + "</dl></section></main>");
}

}  // namespace cox::metrics
