#include <algorithm>
#include <cmath>
#include <vector>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/plan_view.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show the tightest only
constexpr std::size_t kTightestShown = 8;
constexpr std::size_t kRunsShown = 16;

std::string known_bytes(std::int64_t bytes) {
  return bytes > 0 ? bytes_text(static_cast<std::uint64_t>(bytes)) : "–";
}

// "+3.2 %"; a dash where the time of a step is not known.
std::string added_text(double ratio) {
  return std::isfinite(ratio) ? "+" + percent_text(ratio, 1) : "–";
}

// "1.2 MiB", "−300 KiB".
std::string signed_bytes(std::int64_t bytes) {
  return bytes < 0 ? "−" + bytes_text(static_cast<std::uint64_t>(-bytes))
                   : bytes_text(static_cast<std::uint64_t>(bytes));
}

struct RankLine {
  const RankRow* row = nullptr;
  RankMemoryView view;

  bool has_headroom() const { return view.budget_bytes > 0 && row->memory_peak_bytes > 0; }
  std::int64_t headroom() const {
    return view.budget_bytes - static_cast<std::int64_t>(row->memory_peak_bytes);
  }
};

// Least headroom first; ranks without a budget by their peak, after the others.
bool is_tighter(const RankLine& a, const RankLine& b) {
  if (a.has_headroom() != b.has_headroom()) return a.has_headroom();
  if (a.has_headroom() && a.headroom() != b.headroom()) return a.headroom() < b.headroom();
  const auto peak = [](const RankLine& line) { return line.row->memory_peak_bytes; };
  return peak(a) != peak(b) ? peak(a) > peak(b) : a.row->rank < b.row->rank;
}

std::vector<RankLine> lines_shown(const Snapshot& s) {
  std::vector<RankLine> lines;
  for (const RankRow& row : s.ranks->rows) {
    const auto rank = static_cast<std::size_t>(row.rank.value());
    if (rank < s.memory->ranks.size()) lines.push_back({&row, s.memory->ranks[rank]});
  }
  if (lines.size() <= kShowAll) return lines;
  std::partial_sort(lines.begin(), lines.begin() + kTightestShown, lines.end(), is_tighter);
  lines.resize(kTightestShown);
  return lines;
}

// How much of the budget the measured peak takes.
std::string budget_bar(const RankLine& line) {
  if (!line.has_headroom()) return {};
  const double part = static_cast<double>(line.row->memory_peak_bytes) /
                      static_cast<double>(line.view.budget_bytes);
  return "<div class=\"bar meter\" aria-hidden=\"true\"><i class=\"" +
         std::string(part > 1 ? "over" : "ph2") +
         "\" style=\"width:" + fixed(100 * std::min(part, 1.0), 1) + "%\"></i></div>";
}

std::string rank_line(const RankLine& line) {
  const auto cell = [](const std::string& text) { return "<td class=\"n\">" + text + "</td>"; };
  const std::int64_t measured = static_cast<std::int64_t>(line.row->memory_peak_bytes);
  std::string out = "<tr>" + cell(std::to_string(line.row->rank.value())) +
                    cell(known_bytes(line.view.predicted_peak_bytes)) +
                    cell(known_bytes(measured)) + cell(known_bytes(line.view.budget_bytes)) +
                    cell(line.has_headroom() ? signed_bytes(line.headroom()) : "–") +
                    "<td class=\"wide\">" + budget_bar(line) + "</td>" +
                    cell(added_text(line.view.added_ratio)) + "<td>";
  if (line.has_headroom() && line.headroom() < 0)
    out += "<span class=\"tag bad\">over budget</span>";
  return out + "</td></tr>";
}

std::string rank_table(const Snapshot& s) {
  const std::vector<RankLine> lines = lines_shown(s);
  std::string out;
  if (lines.size() < s.ranks->rows.size())
    out += "<p class=\"hint group\">The " + std::to_string(lines.size()) +
           " ranks nearest to their budget; <a href=\"/api/v1/ranks\">all</a>.</p>";
  out +=
      "<div class=\"scroll\"><table><thead><tr><th class=\"n\">Rank</th>"
      "<th class=\"n\">Predicted peak</th><th class=\"n\">Real peak</th><th class=\"n\">Budget</th>"
      "<th class=\"n\">Left</th><th class=\"wide\">Of the budget</th>"
      "<th class=\"n\">Added time</th><th>Remarks</th></tr></thead><tbody>";
  for (const RankLine& line : lines) out += rank_line(line);
  return out + "</tbody></table></div>";
}

// "recompute", where ranks differ "recompute on 2 of 4 ranks, keep on 2".
std::string action_text(const ActionRanks& ranks) {
  std::int32_t world = 0;
  for (const std::int32_t count : ranks) world += count;
  std::string text;
  for (const std::size_t a : {1u, 2u, 3u, 0u}) {
    if (ranks[a] == 0) continue;
    if (ranks[a] == world) return std::string(kMemoryActionNames[a]);
    text += (text.empty() ? "" : ", ") + std::string(kMemoryActionNames[a]) + " on " +
            std::to_string(ranks[a]);
    if (text.find(" of ") == std::string::npos) text += " of " + std::to_string(world) + " ranks";
  }
  return text;
}

std::string block_names(const JobFacts& job, std::size_t first, std::size_t last) {
  const std::string name = escape(block_name(job, first));
  if (first == last) return name;
  return name + " to " + escape(block_name(job, last)) + " (" + std::to_string(last - first + 1) +
         ")";
}

// Neighbouring blocks with the same actions on the same number of ranks share a row.
std::string block_table(const Snapshot& s) {
  const std::vector<ActionRanks> ranks = action_ranks(*s.plan, s.job->world_size);
  std::string rows;
  std::size_t shown = 0;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[first]) ++last;
    if (++shown <= kRunsShown)
      rows += "<tr><td>" + block_names(*s.job, first, last) + "</td><td>" +
              action_text(ranks[first]) + "</td></tr>";
    first = last + 1;
  }
  if (rows.empty()) return {};
  if (shown > kRunsShown)
    rows += "<tr><td colspan=\"2\"><a href=\"/api/v1/plan\">" + std::to_string(shown - kRunsShown) +
            " more</a></td></tr>";
  return "<div class=\"scroll\"><table><thead><tr><th>Blocks</th><th>Action</th></tr></thead>"
         "<tbody>" +
         rows + "</tbody></table></div>";
}

std::string facts(const Snapshot& s) {
  const MemoryView& view = *s.memory;
  const auto fact = [](std::string_view name, const std::string& value) {
    return "<div><dt>" + std::string(name) + "</dt><dd>" + value + "</dd></div>";
  };
  const bool has_headroom = s.headroom.tightest.value() >= 0;
  std::string out = "<dl class=\"facts\">";
  out += fact("Highest predicted peak", known_bytes(view.predicted_peak_bytes));
  out += fact("Highest real peak",
              known_bytes(static_cast<std::int64_t>(s.summary.memory_peak_bytes)));
  out += fact("Lowest budget", view.budget_bytes > 0 ? known_bytes(view.budget_bytes) : "none");
  out += fact("Least left", has_headroom ? signed_bytes(s.headroom.least_bytes) + ", rank " +
                                               std::to_string(s.headroom.tightest.value())
                                         : "–");
  out += fact("With every block kept", known_bytes(view.keep_all_peak_bytes));
  out += fact("Added time, predicted", added_text(view.added_ratio));
  return out + "</dl>";
}

// "Every rank holds parameters 3.2 MiB, optimizer 6.4 MiB." Empty where nothing is known.
std::string held_text(const HeldBytes& held) {
  const struct {
    const char* name;
    std::int64_t bytes;
  } kinds[] = {{"parameters", held.parameters},
               {"gradients", held.gradients},
               {"optimizer", held.optimizer},
               {"buckets", held.buckets}};
  std::string text;
  for (const auto& kind : kinds) {
    if (kind.bytes > 0)
      text += (text.empty() ? "" : ", ") + std::string(kind.name) + " " + known_bytes(kind.bytes);
  }
  return text.empty() ? text : " Beside activations every rank holds " + text + ".";
}

std::string not_planned(const Snapshot& s) {
  const JobFacts& job = *s.job;
  if (s.summary.watching > 0 && s.summary.watching == s.summary.reporting)
    return "Not planned: ranks that only watch apply no plans.";
  if (job.blocks.empty()) return "Not planned: the job has named no blocks.";
  if (job.capabilities.actions == only(MemoryAction::keep))
    return "Not planned: every block is kept. A budget switches it on, for example "
           "<code>--cox.memory.budget=6GiB</code> or <code>COX_MEMORY_BUDGET=6GiB</code>.";
  return "Not planned: nothing was measured before the first step; the log of rank 0 says why. "
         "Every block is kept unless a rule says otherwise.";
}

}  // namespace

std::string page_memory(const Snapshot& s) {
  std::string out = "<section class=\"card\"><h2>Activation memory</h2>";
  if (!s.memory)
    return out + "<p class=\"hint\">" + not_planned(s) + held_text(s.held) + "</p></section>";
  out +=
      "<p class=\"hint\">What the newest plan does with what blocks hold for the backward pass. "
      "Predictions come from steps measured before the first one." +
      held_text(s.held) + "</p>";
  return out + facts(s) + "<div class=\"split\"><div>" + rank_table(s) + "</div><div>" +
         block_table(s) + "</div></div></section>";
}

}  // namespace cox::metrics
