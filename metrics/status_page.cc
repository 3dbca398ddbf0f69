#include "metrics/status_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/words.h"
#include "metrics/catalogue.h"
#include "metrics/format.h"
#include "metrics/health.h"
#include "metrics/pages/template.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

Record state_tag(const Served& served) {
  const Snapshot& s = *served.snapshot;
  if (s.state == JobState::waiting) return tag("", "◌ waiting for the first round");
  if (s.state == JobState::finished) return tag("", "■ finished");
  if (!liveness(s, served.now).good()) return tag("bad", "▲ stalled");
  if (const auto* view = s.views.find<StallView>())
    return tag("warn", view->stall.is_save() ? "◌ saving" : "◌ waiting");
  return tag("good", "● training");
}

List documents() {
  List out = {{{"path", "/api/v1/status"}}, {{"path", "/api/v1/config"}}};
  for (const Topic& topic : topics()) {
    for (const Document& document : topic.documents) out.push_back({{"path", document.path}});
  }
  return out;
}

std::string header(const Served& served) {
  const Snapshot& s = *served.snapshot;
  const bool is_over = s.state == JobState::finished;
  const UnixTime until = is_over ? s.last_round_time : served.now;
  const auto world = static_cast<std::uint64_t>(s.job->world_size);
  const auto missing = static_cast<std::uint64_t>(rank_counts(s).missing);
  const auto duration = [](double seconds) { return duration_text(std::max(0.0, seconds)); };
  const auto left = seconds_left(s);
  return render("status_head.html",
                {{"job", s.job->name},
                 {"state", state_tag(served)},
                 {"progress", s.state != JobState::waiting},
                 {"round", grouped(s.summary.round.value())},
                 {"step", grouped(s.summary.step.value())},
                 {"last_step", s.last_step > 0 ? grouped(s.last_step) : ""},
                 {"ago", duration(served.now.seconds - s.last_round_time.seconds)},
                 {"reporting", grouped(world - missing)},
                 {"world", grouped(world)},
                 {"missing", missing > 0 ? grouped(missing) : ""},
                 {"plan", grouped(s.plan->id.number)},
                 {"lasted", duration(until.seconds - s.started.seconds)},
                 {"ended", is_over ? utc_text(until) : ""},
                 {"left", left ? duration_text(*left) : ""},
                 {"start", s.job->incarnation > 1 ? std::to_string(s.job->incarnation) : ""},
                 {"now", is_over ? "" : utc_text(served.now)}});
}

// Returns "Rank 1 is in backward of step 212 ...".
std::string sentence_of(const StallView& stall) {
  const std::string text = stall.text();
  return upper_case(text.substr(0, 1)) + text.substr(1);
}

std::string nonfinite_text(const StepSummary& summary) {
  const std::string first = std::to_string(summary.first_nonfinite_rank.value());
  const std::string who =
      summary.nonfinite_ranks == 1
          ? "Rank " + first
          : std::to_string(summary.nonfinite_ranks) + " ranks (the first is rank " + first + ")";
  return who + " had a loss or gradient that is not finite in this round";
}

// Returns notes about the parts of the job that need attention; empty if none does.
std::string attention(const Served& served) {
  const Snapshot& s = *served.snapshot;
  List notes;
  const Health live = liveness(s, served.now);
  if (!live.good()) notes.push_back(tag("bad", live.reason));
  if (s.state == JobState::finished)
    notes.push_back(
        tag("calm", "The job has ended. These are the last values; the page no longer changes."));
  const auto* stall = s.views.find<StallView>();
  if (live.good() && stall != nullptr)
    notes.push_back(tag(stall->stall.is_save() ? "" : "bad", sentence_of(*stall)));
  if (s.state != JobState::finished && !readiness(s).good())
    notes.push_back(tag("", readiness(s).reason));
  if (s.state != JobState::waiting && s.summary.nonfinite_ranks > 0)
    notes.push_back(tag("bad", nonfinite_text(s.summary)));
  if (s.control.journal_errors > 0)
    notes.push_back(tag("", grouped(s.control.journal_errors) +
                                " journal records could not be written; the job cannot be replayed "
                                "completely"));
  return render("notes.html", {{"notes", std::move(notes)}});
}

// PagePart is a part of the page that the script replaces.
struct PagePart {
  std::string id;
  std::string html;
};

// Adds the sections of all topics, one part each. Two halves of a row are one part. The number of
// parts never changes.
void add_sections(const Snapshot& s, std::vector<PagePart>& to) {
  std::size_t parts = 0;
  bool is_row = false;  // the last part is a row of halves
  const auto end_row = [&] {
    if (is_row && !to.back().html.empty())
      to.back().html = render("pair.html", {{"halves", Markup{std::move(to.back().html)}}});
    is_row = false;
  };
  for (const Topic& topic : topics()) {
    for (const Section& section : topic.sections) {
      const bool is_half = section.width == Section::Width::half;
      if (!is_half) end_row();
      if (!is_row) to.push_back({fmt::format("part-{}", parts++), ""});
      is_row = is_half;
      const bool is_shown = s.state != JobState::waiting || section.shown == Section::Shown::always;
      if (is_shown) to.back().html += section_html(section, s);
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

std::string section_html(const Section& section, const Snapshot& snapshot) {
  const Record values = section.values(snapshot);
  return values.fields().empty() ? "" : render(section.page, values);
}

std::string status_page(const Served& served) {
  const Snapshot& s = *served.snapshot;
  List parts;
  for (PagePart& part : parts_of(served))
    parts.push_back({{"id", part.id}, {"html", Markup{std::move(part.html)}}});
  return render("status.html", {{"title", title(s)},
                                {"ended", s.state == JobState::finished},
                                {"refresh_seconds", kStatusRefresh.count()},
                                {"parts", std::move(parts)},
                                {"version", s.build.version},
                                {"revision", s.build.revision},
                                {"documents", documents()}});
}

std::vector<EventPart> page_events(const Served& served) {
  std::vector<EventPart> out = {
      {"part", "title\n" + render("title.html", {{"title", title(*served.snapshot)}})}};
  for (const PagePart& part : parts_of(served)) out.push_back({"part", part.id + "\n" + part.html});
  return out;
}

std::string_view status_script() {
  return std::ranges::find(page_files(), "status.js", &PageFile::name)->text;
}

std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints) {
  return render("index.html", {{"job", served.snapshot->job->name},
                               {"version", served.snapshot->build.version},
                               {"world", served.snapshot->job->world_size},
                               {"pages", list_of(endpoints, [](const Endpoint& endpoint) {
                                  return Record{{"path", endpoint.path}, {"help", endpoint.help}};
                                })}});
}

}  // namespace cox::metrics
