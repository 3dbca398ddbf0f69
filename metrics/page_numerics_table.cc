#include <algorithm>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/numerics_rows.h"
#include "metrics/page_numerics.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

std::string ratio_cell(const KnownRatio& ratio) {
  if (!ratio.is_known) return "<td class=\"n\">–</td>";
  return "<td class=\"n\" title=\"round " + grouped(ratio.round.value()) + "\">" +
         (ratio.value == 0 ? "0" : significant(100 * ratio.value, 2) + " %") + "</td>";
}

std::string magnitude_cell(const KnownMagnitude& known) {
  if (!known.is_known) return "<td class=\"n\">–</td>";
  return "<td class=\"n\" title=\"rank " + std::to_string(known.rank.value()) + ", round " +
         grouped(known.round.value()) + "\">" + significant(known.value, 3) + " <small>r" +
         std::to_string(known.rank.value()) + "</small></td>";
}

std::string overflow_cell(const BlockNumerics& block, RoundId now) {
  if (overflows(block) == 0) return "<td class=\"n\">0</td>";
  std::string text;
  for (std::size_t p = 0; p < kPassNames.size(); ++p) {
    if (block.overflow_rounds[p] > 0)
      text += (text.empty() ? "" : ", ") + grouped(block.overflow_rounds[p]) + " " +
              std::string(kPassNames[p]);
  }
  if (!is_hot(block, now)) return "<td class=\"n\">" + text + "</td>";
  return "<td class=\"n\"><span class=\"tag bad\">▲ " + text + "</span></td>";
}

// The newest reason; one that the row above has given is not repeated.
std::string reason_text(const Reason* reason, const Reason* above) {
  if (reason == nullptr) return {};
  return above != nullptr && above->text == reason->text ? "as above" : escape(reason->text);
}

struct TableFacts {
  const JobFacts& job;
  RoundId now;
  bool has_curvature;
};

std::string row_html(const TableFacts& table, const BlockRow& row, const BlockRow* above) {
  const BlockNumerics& block = row.worst;
  std::string name = escape(block_name(table.job, row.first));
  if (row.last > row.first)
    name += " to " + escape(block_name(table.job, row.last)) + " (" +
            std::to_string(row.last - row.first + 1) + ")";
  std::string out = "<tr><td>" + name + "</td><td class=\"fmt\"><span class=\"tag " +
                    format_class(block.format) + "\">" + format_text(block) + "</span></td>";
  out += "<td class=\"n\">" +
         (block.changes > 0 ? grouped(block.changed_round.value()) : std::string("start")) +
         (block.changes > 1 ? " <small>" + grouped(block.changes) + "×</small>" : "") + "</td>";
  out += ratio_cell(block.noise) + ratio_cell(block.underflow) + ratio_cell(block.saturated) +
         magnitude_cell(block.activation) + magnitude_cell(block.gradient);
  if (table.has_curvature) out += magnitude_cell(block.curvature);
  const Reason* said = above != nullptr ? above->worst.newest.get() : nullptr;
  return out + overflow_cell(block, table.now) + "<td class=\"why\">" +
         reason_text(block.newest.get(), said) + "</td></tr>";
}

}  // namespace

std::string numerics_table(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  if (view.blocks.empty()) return {};
  const bool has_curvature =
      std::any_of(view.blocks.begin(), view.blocks.end(),
                  [](const BlockNumerics& block) { return block.curvature.is_known; });
  const RoundId now = s.summary.round;
  const std::vector<BlockRow> all = block_rows(view, now);
  const std::vector<BlockRow> rows = most_telling(all, now);
  std::string out =
      "<div class=\"scroll\"><table class=\"dense\"><thead><tr><th>Block</th><th>Format</th>"
      "<th class=\"n\">Since round</th><th class=\"n\">Gradient noise</th>"
      "<th class=\"n\">Underflow</th><th class=\"n\">Clipped</th>"
      "<th class=\"n\">Largest result</th><th class=\"n\">Largest gradient</th>";
  if (has_curvature) out += "<th class=\"n\">Curvature</th>";
  out += "<th class=\"n\">Overflows</th><th>Newest reason</th></tr></thead><tbody>";
  for (std::size_t i = 0; i < rows.size(); ++i)
    out += row_html({*s.job, now, has_curvature}, rows[i], i > 0 ? &rows[i - 1] : nullptr);
  out +=
      "</tbody></table></div><p class=\"hint\">Beside a round, how often the format changed; r3 "
      "says that rank 3 saw the largest.";
  if (rows.size() < view.blocks.size()) out += " Of blocks in one row the largest value is shown.";
  out += "</p>";
  if (rows.size() < all.size())
    out += "<p class=\"hint\"><a href=\"/api/v1/numerics\">" +
           std::to_string(all.size() - rows.size()) + " more rows</a></p>";
  return out;
}

}  // namespace cox::metrics
