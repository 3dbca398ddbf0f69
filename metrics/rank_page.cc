#include <cstdint>
#include <limits>

#include "metrics/format.h"
#include "metrics/pages/template.h"
#include "metrics/sparkline.h"
#include "metrics/status_page.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/heat_map.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kMostDecisions = 30;

Curve work_curve(const HeatMap& heat, std::size_t rank) {
  Curve curve{"Own work", {}, {}, times_text};
  for (const auto& column : heat.columns) {
    const std::uint16_t hundredths = column->of(rank);
    curve.values.push_back(hundredths == HeatColumn::kNone
                               ? std::numeric_limits<double>::quiet_NaN()
                               : hundredths / 100.0);
  }
  return curve;
}

List decisions(const DecisionsView& view, RankId rank) {
  List rows;
  for (auto entry = view.list->rbegin(); entry != view.list->rend(); ++entry) {
    const DecisionEntry& e = **entry;
    if (e.reason.rank != rank || rows.size() == kMostDecisions) continue;
    const std::string first = grouped(e.first_round.value());
    const std::string last = grouped(e.last_round.value());
    rows.push_back({{"rounds", first == last ? first : first + " to " + last},
                    {"policy", to_string(e.reason.policy)},
                    {"outcome", to_string(e.reason.outcome)},
                    {"why", e.reason.text}});
  }
  return rows;
}

}  // namespace

Result<std::string> rank_page(const Served& served, std::string_view query) {
  const Snapshot& s = *served.snapshot;
  const auto asked = query_number(query, "rank");
  if (!asked.ok()) return asked.status();
  const std::uint64_t number = asked->value_or(0);
  if (number >= s.job->ranks())
    return invalid_argument("expected a rank from 0 to ", s.job->world_size - 1,
                            " as ?rank=, found ", number);
  const RankId rank(static_cast<std::int32_t>(number));
  return render(
      "rank.html",
      {{"rank", rank.value()},
       {"job", s.job->name},
       {"world", s.job->world_size},
       {"last_rank", s.job->world_size - 1},
       {"round", grouped(s.summary.round.value())},
       {"now", utc_text(served.now)},
       {"ended", s.state == JobState::finished},
       {"refresh_seconds", kStatusRefresh.count()},
       {"reported", rank_detail(s, rank)},
       {"curve", sparkline(work_curve(s.view<HeatMap>(), static_cast<std::size_t>(number)))},
       {"decisions", with_rows(decisions(s.view<DecisionsView>(), rank))}});
}

}  // namespace cox::metrics
