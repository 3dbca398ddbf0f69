#include <algorithm>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/plan_view.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show the slowest only
constexpr std::size_t kSlowestShown = 8;
constexpr std::size_t kMissingNamed = 8;
constexpr double kSlowRatio = 1.05;

std::vector<const RankRow*> rows_shown(const RankTable& table) {
  std::vector<const RankRow*> rows;
  for (const RankRow& row : table.rows) rows.push_back(&row);
  if (rows.size() <= kShowAll) return rows;
  std::partial_sort(rows.begin(), rows.begin() + kSlowestShown, rows.end(),
                    [](const RankRow* a, const RankRow* b) {
                      return a->own_seconds != b->own_seconds ? a->own_seconds > b->own_seconds
                                                              : a->rank < b->rank;
                    });
  rows.resize(kSlowestShown);
  return rows;
}

std::string phase_bar(const RankRow& row, double longest) {
  std::string out = "<div class=\"bar\" aria-hidden=\"true\">";
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double share = longest > 0 ? static_cast<double>(row.phase_seconds[p]) / longest : 0;
    if (share > 0.001)
      out += "<i class=\"ph" + std::to_string(p) + "\" style=\"width:" + fixed(100 * share, 1) +
             "%\"></i>";
  }
  return out + "</div>";
}

std::string notes(const RankRow& row) {
  const auto has = [&row](SignalFlag flag) {
    return (row.flags & static_cast<std::uint16_t>(flag)) != 0;
  };
  std::string out;
  const auto add = [&out](std::string_view css_class, std::string_view text) {
    out += "<span class=\"tag " + std::string(css_class) + "\">" + std::string(text) + "</span> ";
  };
  if (has(SignalFlag::nonfinite_loss) || has(SignalFlag::nonfinite_gradient))
    add("bad", "not finite");
  if (has(SignalFlag::step_skipped)) add("warn", "skipped");
  if (has(SignalFlag::rolled_back)) add("warn", "rolled back");
  if (has(SignalFlag::step_repeated)) add("warn", "done again");
  if (has(SignalFlag::finished)) add("", "finished");
  if (has(SignalFlag::watching)) add("", "watching");
  if (row.slowdown_ratio >= kSlowRatio)
    add("warn", "slow in " + std::string(to_string(row.worst_phase)));
  return out;
}

std::string memory_text(const RankRow& row) {
  if (row.memory_used_bytes == 0 && row.memory_peak_bytes == 0) return "–";
  if (row.memory_limit_bytes == 0) return bytes_text(row.memory_peak_bytes);
  return percent_text(
      static_cast<double>(row.memory_peak_bytes) / static_cast<double>(row.memory_limit_bytes), 0);
}

std::string row_html(const RankRow& row, double longest) {
  const bool slow = row.slowdown_ratio >= kSlowRatio;
  std::string out = slow ? "<tr class=\"slow\">" : "<tr>";
  out += "<td class=\"n\">" + std::to_string(row.rank.value()) + "</td>";
  out += "<td class=\"n\">" + seconds_text(row.own_seconds) + "</td>";
  out += "<td class=\"n\">" + times_text(row.slowdown_ratio) + "</td>";
  out += "<td class=\"wide\">" + phase_bar(row, longest) + "</td>";
  out += "<td class=\"n wide\">" + memory_text(row) + "</td>";
  return out + "<td>" + notes(row) + "</td></tr>";
}

std::string missing_rows(const RankTable& table) {
  std::string out;
  std::size_t missing = 0;
  for (const FaultyReport& fault : table.faults) {
    if (fault.fault != ReportFault::missing || ++missing > kMissingNamed) continue;
    out += "<tr class=\"gone\"><td class=\"n\">" + std::to_string(fault.rank.value()) +
           "</td><td colspan=\"5\"><span class=\"tag bad\">missing</span> no report for this "
           "round</td></tr>";
  }
  if (missing > kMissingNamed)
    out += "<tr class=\"gone\"><td></td><td colspan=\"5\"><span class=\"tag bad\">missing</span> " +
           grouped(missing - kMissingNamed) + " more ranks</td></tr>";
  return out;
}

std::string headline(const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  std::string text = grouped(static_cast<std::uint64_t>(counts.training)) + " of " +
                     grouped(static_cast<std::uint64_t>(s.job->world_size)) + " training";
  if (counts.missing > 0) text += ", " + std::to_string(counts.missing) + " missing";
  if (counts.finished > 0) text += ", " + std::to_string(counts.finished) + " finished";
  if (counts.watching > 0) text += ", " + std::to_string(counts.watching) + " watching";
  const std::size_t rows = s.ranks->rows.size();
  if (rows > kShowAll)
    text += ". The " + std::to_string(kSlowestShown) + " slowest are shown; own work is " +
            seconds_text(s.summary.own_seconds.min) + " to " +
            seconds_text(s.summary.own_seconds.max) + ", median " +
            seconds_text(s.summary.own_seconds.median);
  return text + ".";
}

}  // namespace

std::string page_ranks(const Snapshot& s) {
  double longest = 0;
  const auto rows = rows_shown(*s.ranks);
  for (const RankRow* row : rows) {
    double sum = 0;
    for (const float seconds : row->phase_seconds) sum += static_cast<double>(seconds);
    longest = std::max(longest, sum);
  }
  std::string out =
      "<section class=\"card\"><h2>Ranks</h2><p class=\"hint\">" + headline(s) +
      "</p><div class=\"scroll\"><table><thead><tr><th class=\"n\">Rank</th>"
      "<th class=\"n\">Own work</th><th class=\"n\">To median</th><th class=\"wide\">Step</th>"
      "<th class=\"n wide\">Memory</th><th>Remarks</th></tr></thead><tbody>";
  out += missing_rows(*s.ranks);
  for (const RankRow* row : rows) out += row_html(*row, longest);
  return out + "</tbody></table></div></section>";
}

}  // namespace cox::metrics
