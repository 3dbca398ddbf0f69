#include <algorithm>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/page_numerics.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kOwnRows = 24;  // blocks; in larger models neighbours share rows
constexpr std::size_t kRowsShown = 24;

// Blocks that share a row; single ones too.
struct Row {
  std::size_t first = 0;
  std::size_t last = 0;
  BlockNumerics worst;
};

template <class Known>
void keep_larger(Known& into, const Known& from) {
  if (from.is_known && (!into.is_known || from.value > into.value)) into = from;
}

void add_to(Row& row, std::size_t index, const BlockNumerics& block) {
  row.last = index;
  BlockNumerics& worst = row.worst;
  keep_larger(worst.noise, block.noise);
  keep_larger(worst.underflow, block.underflow);
  keep_larger(worst.saturated, block.saturated);
  keep_larger(worst.activation, block.activation);
  keep_larger(worst.gradient, block.gradient);
  keep_larger(worst.curvature, block.curvature);
  worst.changed_round = std::max(worst.changed_round, block.changed_round);
  worst.changes = std::max(worst.changes, block.changes);
  if (block.newest && (!worst.newest || worst.newest->round < block.newest->round))
    worst.newest = block.newest;
}

std::vector<Row> rows_of(const NumericsView& view) {
  std::vector<Row> rows;
  const bool may_share = view.blocks.size() > kOwnRows;
  for (std::size_t b = 0; b < view.blocks.size(); ++b) {
    const BlockNumerics& block = view.blocks[b];
    const BlockNumerics* before = rows.empty() ? nullptr : &rows.back().worst;
    const bool shares = may_share && before != nullptr && before->format == block.format &&
                        before->planned == block.planned && overflows(*before) == 0 &&
                        overflows(block) == 0;
    if (shares)
      add_to(rows.back(), b, block);
    else
      rows.push_back({b, b, block});
  }
  return rows;
}

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

std::string overflow_cell(const BlockNumerics& block) {
  if (overflows(block) == 0) return "<td class=\"n\">0</td>";
  std::string text;
  for (std::size_t p = 0; p < kPassNames.size(); ++p) {
    if (block.overflow_rounds[p] > 0)
      text += (text.empty() ? "" : ", ") + grouped(block.overflow_rounds[p]) + " " +
              std::string(kPassNames[p]);
  }
  return "<td class=\"n\"><span class=\"tag bad\">▲ " + text + "</span></td>";
}

// The newest reason; one that the row above has given is not repeated.
std::string reason_text(const Reason* reason, const Reason* above) {
  if (reason == nullptr) return {};
  return above != nullptr && above->text == reason->text ? "as above" : escape(reason->text);
}

std::string row_html(const JobFacts& job, const Row& row, const Row* above, bool has_curvature) {
  const BlockNumerics& block = row.worst;
  std::string name = escape(block_name(job, row.first));
  if (row.last > row.first)
    name += " to " + escape(block_name(job, row.last)) + " (" +
            std::to_string(row.last - row.first + 1) + ")";
  std::string out = "<tr><td>" + name + "</td><td class=\"fmt\"><span class=\"tag " +
                    format_class(block.format) + "\">" + format_text(block) + "</span></td>";
  out += "<td class=\"n\">" +
         (block.changes > 0 ? grouped(block.changed_round.value()) : std::string("start")) +
         (block.changes > 1 ? " <small>" + grouped(block.changes) + "×</small>" : "") + "</td>";
  out += ratio_cell(block.noise) + ratio_cell(block.underflow) + ratio_cell(block.saturated) +
         magnitude_cell(block.activation) + magnitude_cell(block.gradient);
  if (has_curvature) out += magnitude_cell(block.curvature);
  const Reason* said = above != nullptr ? above->worst.newest.get() : nullptr;
  return out + overflow_cell(block) + "<td class=\"why\">" + reason_text(block.newest.get(), said) +
         "</td></tr>";
}

// Rows of blocks that overflowed come first to be kept where there are too many.
std::vector<Row> shown_rows(std::vector<Row> rows) {
  if (rows.size() <= kRowsShown) return rows;
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return overflows(a.worst) > overflows(b.worst);
  });
  rows.resize(kRowsShown);
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.first < b.first; });
  return rows;
}

}  // namespace

std::string numerics_table(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  if (view.blocks.empty()) return {};
  const bool has_curvature =
      std::any_of(view.blocks.begin(), view.blocks.end(),
                  [](const BlockNumerics& block) { return block.curvature.is_known; });
  const std::vector<Row> all = rows_of(view);
  const std::vector<Row> rows = shown_rows(all);
  std::string out =
      "<div class=\"scroll\"><table class=\"dense\"><thead><tr><th>Block</th><th>Format</th>"
      "<th class=\"n\">Since round</th><th class=\"n\">Gradient noise</th>"
      "<th class=\"n\">Underflow</th><th class=\"n\">Clipped</th>"
      "<th class=\"n\">Largest result</th><th class=\"n\">Largest gradient</th>";
  if (has_curvature) out += "<th class=\"n\">Curvature</th>";
  out += "<th class=\"n\">Overflows</th><th>Newest reason</th></tr></thead><tbody>";
  for (std::size_t i = 0; i < rows.size(); ++i)
    out += row_html(*s.job, rows[i], i > 0 ? &rows[i - 1] : nullptr, has_curvature);
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
