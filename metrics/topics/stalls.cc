#include "metrics/topics/stalls.h"

#include <vector>

#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"

namespace cox::metrics {
namespace {

std::string_view to_string(ProcessState state) {
  constexpr std::string_view kNames[kProcessStates] = {"unknown", "running", "stopped", "gone"};
  return kNames[static_cast<std::size_t>(state)];
}

std::int32_t culprit_of(const Snapshot& s) {
  const Stall& stall = s.view<StallView>().stall;
  if (!stall.culprits.empty()) return stall.culprits.front().rank.value();
  return stall.silent.empty() ? -1 : stall.silent.front().value();
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      gauge("coxswain_stall_duration_seconds", "seconds",
            "How long ranks have waited for those that keep them waiting; 0 while nobody waits for "
            "long",
            value([](S s) { return s.view<StallView>().stall.seconds; })),
      gauge(
          "coxswain_stall_rank", "",
          "The lowest rank that keeps others waiting, or of which nothing is heard; -1 while none "
          "does",
          value(culprit_of)),
      gauge("coxswain_stall_ranks", "", "Ranks by their part in a wait that lasts",
            cases("part",
                  {{"waiting", [](S s) { return s.view<StallView>().stall.waiting.size(); }},
                   {"culprit", [](S s) { return s.view<StallView>().stall.culprits.size(); }}})),
  };
}

void put_mark(io::JsonWriter& json, const StallView& view, const RankMark& mark) {
  json.begin_object().field("rank", mark.rank).field("phase", to_string(mark.activity));
  json.field("step", mark.step).field("seconds", mark.activity_seconds);
  json.field("since", view.now.seconds - mark.activity_seconds);
  json.field("process", to_string(mark.process)).end_object();
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  json.key("stall");
  const auto* view = s.views.find<StallView>();
  if (view == nullptr) return static_cast<void>(json.null());
  json.begin_object().field("text", view->text()).field("seconds", view->stall.seconds);
  json.field("since", view->since().seconds).key("culprits").begin_array();
  for (const RankMark& mark : view->stall.culprits) put_mark(json, *view, mark);
  json.end_array();
  put_list(json, "waiting", view->stall.waiting);
  put_list(json, "silent", view->stall.silent);
  json.end_object();
}

// Writes the rank's present state as "now", null if unknown. Other fields are of the newest round.
void put_rank(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  const RankId rank = row.report.rank;
  const StallView& view = s.view<StallView>();
  json.key("now");
  for (const RankMark& mark : view.stall.culprits) {
    if (mark.rank == rank) return put_mark(json, view, mark);
  }
  view.stall.is_waiting(rank) ? json.value("waiting") : json.null();
}

}  // namespace

std::string StallView::text() const {
  return text_of(stall) + " (since " + utc_text(since()) + ")";
}

Topic stalls_topic() {
  return {.title = "Stalls", .metrics = metrics, .put_status = put_status, .put_rank = put_rank};
}

}  // namespace cox::metrics
