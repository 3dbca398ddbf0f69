#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "metrics/format.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show both ends only
constexpr std::ptrdiff_t kEndsShown = 4;

std::string fact(std::string_view name, const std::string& value) {
  return "<div><dt>" + std::string(name) + "</dt><dd>" + value + "</dd></div>";
}

std::string count_text(double count) {
  return grouped(static_cast<std::uint64_t>(std::llround(std::max(count, 0.0))));
}

// "160 samples, 10.00× the job's 16", "16 samples, 160 planned".
std::string batch_text(const Snapshot& s) {
  const double now = s.parallel.step_samples;
  const std::uint64_t planned = planned_samples(*s.plan, *s.job);
  const auto own = static_cast<double>(s.job->global_batch);
  std::string text = count_text(now) + " samples";
  if (s.plan->step_samples != 0 && static_cast<double>(planned) != now)
    return text + ", " + grouped(planned) + " planned";
  if (own > 0 && now != own) text += ", " + times_text(now / own) + " the job's " + count_text(own);
  return text;
}

std::string samples_text(const RankRow& row) {
  const bool is_whole = std::round(row.samples_per_step) == row.samples_per_step;
  return is_whole ? count_text(row.samples_per_step) : fixed(row.samples_per_step, 1);
}

// "8 each", "4 to 16, most on rank 3".
std::string samples_text(const Spread& spread) {
  if (spread.min == spread.max) return count_text(spread.max) + " each";
  return count_text(spread.min) + " to " + count_text(spread.max) + ", most on rank " +
         std::to_string(spread.rank_of_max.value());
}

std::string reduction_text(const ParallelView& view) {
  const double hidden = hidden_ratio(view);
  if (std::isnan(hidden)) return "–";
  return seconds_text(view.reduction_seconds.median) + " a step, " + percent_text(hidden, 0) +
         " behind backward";
}

std::string exposed_text(const ParallelView& view) {
  if (!(view.reduction_seconds.max > 0)) return "–";
  return seconds_text(view.exposed_seconds.median) + ", most " +
         seconds_text(view.exposed_seconds.max) + " on rank " +
         std::to_string(view.exposed_seconds.rank_of_max.value());
}

// All ranks, or in large jobs those with most samples and those with fewest; ascending ranks.
std::vector<const RankRow*> rows_shown(const RankTable& table) {
  std::vector<const RankRow*> rows;
  for (const RankRow& row : table.rows) rows.push_back(&row);
  if (rows.size() <= kShowAll) return rows;
  const auto has_more = [](const RankRow* a, const RankRow* b) {
    return a->samples_per_step != b->samples_per_step ? a->samples_per_step > b->samples_per_step
                                                      : a->rank < b->rank;
  };
  const auto most = rows.begin() + kEndsShown;
  const auto fewest = rows.end() - kEndsShown;
  std::nth_element(rows.begin(), most, rows.end(), has_more);
  std::nth_element(most, fewest, rows.end(), has_more);
  rows.erase(most, fewest);
  std::sort(rows.begin(), rows.end(),
            [](const RankRow* a, const RankRow* b) { return a->rank < b->rank; });
  return rows;
}

std::string row_html(const RankRow& row, double all, double longest) {
  const auto cell = [](const std::string& text) { return "<td class=\"n\">" + text + "</td>"; };
  const double part = all > 0 ? row.samples_per_step / all : 0;
  const double width = longest > 0 ? 100 * row.samples_per_step / longest : 0;
  const bool is_reduced = row.reduction_seconds > 0;
  const double hidden = hidden_ratio(row.reduction_seconds, row.reduction_exposed_seconds);
  return "<tr>" + cell(std::to_string(row.rank.value())) + cell(samples_text(row)) +
         cell(percent_text(part, 1)) +
         "<td class=\"wide\"><div class=\"bar meter\" aria-hidden=\"true\"><i class=\"ph2\" "
         "style=\"width:" +
         fixed(width, 1) + "%\"></i></div></td>" +
         cell(is_reduced ? seconds_text(row.reduction_seconds) : "–") +
         cell(is_reduced ? seconds_text(row.reduction_exposed_seconds) : "–") +
         cell(is_reduced ? percent_text(hidden, 0) : "–") + "</tr>";
}

std::string rank_table(const Snapshot& s) {
  const auto rows = rows_shown(*s.ranks);
  double longest = 0;
  for (const RankRow* row : rows) longest = std::max(longest, row->samples_per_step);
  std::string out;
  if (rows.size() < s.ranks->rows.size())
    out += "<p class=\"hint group\">The " + std::to_string(kEndsShown) +
           " ranks with most samples and those with fewest; <a href=\"/api/v1/ranks\">all</a>.</p>";
  out +=
      "<div class=\"scroll\"><table><thead><tr><th class=\"n\">Rank</th>"
      "<th class=\"n\">Samples a step</th><th class=\"n\">Share</th><th class=\"wide\"></th>"
      "<th class=\"n\">Reduction</th><th class=\"n\">Not hidden</th><th class=\"n\">Hidden</th>"
      "</tr></thead><tbody>";
  for (const RankRow* row : rows) out += row_html(*row, s.ranks->samples_per_step, longest);
  return out + "</tbody></table></div>";
}

}  // namespace

std::string page_parallel(const Snapshot& s) {
  const ParallelView& view = s.parallel;
  if (s.job->world_size < 2 && s.plan->step_samples == 0) return {};
  std::string out = "<section class=\"card\"><h2>Data parallel</h2><dl class=\"facts\">";
  out += fact("Batch of a step", batch_text(s));
  out += fact("Samples of a rank", samples_text(view.rank_samples));
  if (view.micro_batches > 0)
    out += fact("Fewest micro-batches",
                grouped(view.micro_batches) + " of " + grouped(s.job->micro_batch) + " samples");
  out += fact("Gradient reduction", reduction_text(view));
  out += fact("Not hidden", exposed_text(view));
  if (s.totals.repeated_rounds > 0)
    out += fact("Steps done again", grouped(s.totals.repeated_rounds));
  return out + "</dl>" + rank_table(s) + "</section>";
}

}  // namespace cox::metrics
