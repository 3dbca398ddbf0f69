#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/sparkline.h"
#include "metrics/status_page.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/heat_map.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kMostDecisions = 30;

std::string header(const Served& served, std::int32_t rank) {
  const Snapshot& s = *served.snapshot;
  return fmt::format(
      "<header class=\"top\"><div class=\"line\">{}<h1>Rank {} of {}</h1></div><p class=\"meta\">"
      "{}, round {}. {} · <a href=\"{}\">the whole job</a></p></header>",
      page_mark(), rank, s.job->world_size, escape(s.job->name), grouped(s.summary.round.value()),
      utc_text(served.now), kStatusPath);
}

std::string work_curve(const HeatMap& heat, std::size_t rank) {
  Curve curve{"Own work", {}, {}, times_text};
  for (const auto& column : heat.columns) {
    const std::uint16_t hundredths = column->of(rank);
    curve.values.push_back(hundredths == HeatColumn::kNone
                               ? std::numeric_limits<double>::quiet_NaN()
                               : hundredths / 100.0);
  }
  return hint("Over that of the median rank, round by round.") + sparkline(curve);
}

std::string decisions(const DecisionsView& view, RankId rank) {
  Table table({"Rounds/n", "Who", "What became of it", "Why"}, "dense");
  std::size_t count = 0;
  for (auto entry = view.list->rbegin(); entry != view.list->rend(); ++entry) {
    const DecisionEntry& e = **entry;
    if (e.reason.rank != rank || ++count > kMostDecisions) continue;
    const std::string first = grouped(e.first_round.value());
    const std::string last = grouped(e.last_round.value());
    table.add({first == last ? first : first + " to " + last,
               std::string(to_string(e.reason.policy)), std::string(to_string(e.reason.outcome)),
               escape(e.reason.text)});
  }
  return count == 0 ? "" : table.html();
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
  std::string body = "<main class=\"page narrow\">" + header(served, rank.value());
  body += card("Now", rank_detail(s, rank));
  body += card("Work", work_curve(s.view<HeatMap>(), static_cast<std::size_t>(number)));
  body += card("Decided about it", decisions(s.view<DecisionsView>(), rank));
  body += card("Another rank", rank_form(s));
  const bool is_over = s.state == JobState::finished;
  return html_document(fmt::format("Rank {} · {}", rank.value(), s.job->name),
                       is_over ? "" : refresh_element(), body + "</main>");
}

}  // namespace cox::metrics
