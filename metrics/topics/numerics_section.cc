#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/sparkline.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/progress.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kNamedCells = 48;  // blocks; more are drawn as small cells
constexpr std::uint64_t kLatelyRounds = 1000;
constexpr std::size_t kEarlierShown = 5;
constexpr std::size_t kRowsShown = 24;
constexpr std::size_t kOwnRows = 24;          // blocks that all have a row of their own
constexpr std::uint64_t kRecentRounds = 100;  // an overflow that old is history
constexpr std::array<std::string_view, kPrecisions> kLetters = {"32", "bf", "16", "8"};

// Rounds in which the block overflowed, in either pass.
std::uint64_t overflows(const BlockNumerics& block) {
  return block.overflow_rounds[0] + block.overflow_rounds[1];
}

// Returns whether the block overflowed lately. A scaler that probes its limit makes every block
// overflow some time, which is no news.
bool is_hot(const BlockNumerics& block, RoundId now) {
  return overflows(block) > 0 && block.overflowed_round.value() + kLatelyRounds >= now.value();
}

// "q1": the colour of a format.
std::string format_class(Precision format) {
  return "q" + std::to_string(static_cast<int>(format));
}

// "bf16", "bf16, fp16 next".
std::string format_text(const BlockNumerics& block) {
  std::string text(to_string(block.format));
  if (block.planned != block.format) text += ", " + std::string(to_string(block.planned)) + " next";
  return text;
}

struct CellFacts {
  const JobFacts& job;
  RoundId now;
  std::size_t prefix_length;  // npos = letters only
};

std::string cell(const CellFacts& facts, std::size_t index, const BlockNumerics& block) {
  const std::string name = block_name(facts.job, index);
  const std::uint64_t rounds = overflows(block);
  const bool hot = is_hot(block, facts.now);
  std::string out = fmt::format("<li class=\"{}{}\" title=\"{}: {}", format_class(block.format),
                                hot ? " hot" : "", escape(name), format_text(block));
  if (rounds > 0)
    out += fmt::format("; overflowed in {}{}", grouped(rounds), rounds == 1 ? " round" : " rounds");
  out += "\">";
  if (facts.prefix_length == std::string::npos)
    return fmt::format("{}{}</li>", out,
                       hot ? "▲" : kLetters[static_cast<std::size_t>(block.format)]);
  out +=
      "<em>" + escape(name.substr(facts.prefix_length)) + "</em><b>" + format_text(block) + "</b>";
  if (hot) out += "<span>▲ " + grouped(rounds) + "</span>";
  return out + "</li>";
}

std::string key(const NumericsView& view, bool is_named, RoundId now) {
  const auto blocks = format_blocks(view);
  const auto all = static_cast<double>(std::max<std::size_t>(view.blocks.size(), 1));
  std::string out = "<ul class=\"keys\">";
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    if (blocks[k] == 0) continue;
    out += fmt::format("<li><i class=\"q{}\">{}</i>{}: {}{}, {}</li>", k,
                       is_named ? "" : kLetters[k], kPrecisionNames[k], blocks[k],
                       blocks[k] == 1 ? " block" : " blocks", percent_text(blocks[k] / all, 0));
  }
  const bool any_hot =
      std::any_of(view.blocks.begin(), view.blocks.end(),
                  [now](const BlockNumerics& block) { return is_hot(block, now); });
  if (any_hot) out += "<li><i class=\"hot\">▲</i>overflowed lately</li>";
  return out + "</ul>";
}

std::string numerics_cells(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  const bool is_named = view.blocks.size() <= kNamedCells;
  const std::size_t prefix_length = is_named ? common_prefix(*s.job).size() : std::string::npos;
  std::string out = is_named ? "<ul class=\"strip\">" : "<ul class=\"strip lettered\">";
  const CellFacts facts{*s.job, s.summary.round, prefix_length};
  for (std::size_t b = 0; b < view.blocks.size(); ++b) out += cell(facts, b, view.blocks[b]);
  return view.blocks.empty() ? "" : out + "</ul>" + key(view, is_named, s.summary.round);
}

// One row of the table. In models of many blocks neighbours of one format share a row, for which
// the worst of them speaks; a block that overflowed lately keeps a row of its own.
struct BlockRow {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  BlockNumerics worst;   // the block itself, where it is alone; overflows add up
};

void keep_larger(Known& into, const Known& from) {
  if (from.is_known && (!into.is_known || from.value > into.value)) into = from;
}

void add_to(BlockRow& row, std::size_t index, const BlockNumerics& block) {
  row.last = index;
  BlockNumerics& worst = row.worst;
  for (const KnownKind& kind : kKnownKinds) keep_larger(worst.*kind.member, block.*kind.member);
  worst.changed_round = std::max(worst.changed_round, block.changed_round);
  worst.changes = std::max(worst.changes, block.changes);
  worst.overflowed_round = std::max(worst.overflowed_round, block.overflowed_round);
  for (std::size_t p = 0; p < worst.overflow_rounds.size(); ++p)
    worst.overflow_rounds[p] += block.overflow_rounds[p];
  if (block.newest && (!worst.newest || worst.newest->round < block.newest->round))
    worst.newest = block.newest;
}

bool are_alike(const BlockNumerics& a, const BlockNumerics& b, RoundId now) {
  return a.format == b.format && a.planned == b.planned && !is_hot(a, now) && !is_hot(b, now);
}

std::vector<BlockRow> block_rows(const NumericsView& view, RoundId now) {
  std::vector<BlockRow> rows;
  const bool may_share = view.blocks.size() > kOwnRows;
  for (std::size_t b = 0; b < view.blocks.size(); ++b) {
    const BlockNumerics& block = view.blocks[b];
    if (may_share && !rows.empty() && are_alike(rows.back().worst, block, now))
      add_to(rows.back(), b, block);
    else
      rows.push_back({b, b, block});
  }
  return rows;
}

// At most 24 of them, in their order: those that overflowed lately, then the first.
std::vector<BlockRow> most_telling(std::vector<BlockRow> rows, RoundId now) {
  if (rows.size() <= kRowsShown) return rows;
  std::stable_partition(rows.begin(), rows.end(),
                        [now](const BlockRow& row) { return is_hot(row.worst, now); });
  rows.resize(kRowsShown);
  std::sort(rows.begin(), rows.end(),
            [](const BlockRow& a, const BlockRow& b) { return a.first < b.first; });
  return rows;
}

// Adds the text that shows when the pointer rests on it.
std::string with_title(const std::string& title, const std::string& text) {
  return fmt::format("<span title=\"{}\">{}</span>", title, text);
}

std::string ratio_text(const Known& ratio) {
  if (!ratio.is_known) return "–";
  return with_title("round " + grouped(ratio.round.value()),
                    ratio.value == 0 ? "0" : significant(100 * ratio.value, 2) + " %");
}

// Noise is a multiple of the signal. Beyond some size only that matters: nothing is left to see of
// the signal.
std::string noise_text(const Known& noise) {
  constexpr double kLost = 1000;
  if (!noise.is_known) return "–";
  return with_title("round " + grouped(noise.round.value()),
                    noise.value < kLost ? significant(noise.value, 2) + "×" : "over 1,000×");
}

std::string magnitude_text(const Known& known) {
  if (!known.is_known) return "–";
  const std::int32_t rank = known.rank.value();
  return with_title(fmt::format("rank {}, round {}", rank, grouped(known.round.value())),
                    fmt::format("{} <small>r{}</small>", significant(known.value, 3), rank));
}

std::string overflows_text(const BlockNumerics& block, RoundId now) {
  if (overflows(block) == 0) return "0";
  std::string text;
  for (std::size_t p = 0; p < kPassNames.size(); ++p) {
    if (block.overflow_rounds[p] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", grouped(block.overflow_rounds[p]),
                          kPassNames[p]);
  }
  return is_hot(block, now) ? tag("bad", "▲ " + text) : text;
}

// The newest reason; one that the row above has given is not repeated.
std::string reason_text(const Reason* reason, const Reason* above) {
  if (reason == nullptr) return {};
  return above != nullptr && above->text == reason->text ? "as above" : escape(reason->text);
}

std::vector<std::string> cells_of(const Snapshot& s, const BlockRow& row, const BlockRow* above) {
  const BlockNumerics& block = row.worst;
  const std::string changes =
      block.changes > 1 ? " <small>" + grouped(block.changes) + "×</small>" : "";
  const Reason* said = above != nullptr ? above->worst.newest.get() : nullptr;
  return {escape(block_names(*s.job, row.first, row.last)),
          fmt::format("<span class=\"tag {}\">{}</span>", format_class(block.format),
                      format_text(block)),
          (block.changes > 0 ? grouped(block.changed_round.value()) : "start") + changes,
          noise_text(block.noise),
          ratio_text(block.underflow),
          ratio_text(block.saturated),
          magnitude_text(block.activation),
          magnitude_text(block.gradient),
          overflows_text(block, s.summary.round),
          reason_text(block.newest.get(), said)};
}

std::string numerics_table(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  if (view.blocks.empty()) return {};
  const RoundId now = s.summary.round;
  const std::vector<BlockRow> all = block_rows(view, now);
  const std::vector<BlockRow> rows = most_telling(all, now);
  Table table(
      {"Block", "Format/fmt", "Since round/n", "Gradient noise/n", "Underflow/n", "Clipped/n",
       "Largest result/n", "Largest gradient/n", "Overflows/n", "Newest reason/why"},
      "dense");
  for (std::size_t i = 0; i < rows.size(); ++i)
    table.add(cells_of(s, rows[i], i > 0 ? &rows[i - 1] : nullptr));
  std::string out = table.html() +
                    hint(
                        "Beside a round, how often the format changed; r3 says that rank 3 saw the "
                        "largest. Gradient noise is a multiple of the gradient's signal, on the "
                        "rank where it is least." +
                        std::string(rows.size() < view.blocks.size()
                                        ? " Of blocks in one row the largest value is shown."
                                        : ""));
  if (rows.size() < all.size())
    out += hint(
        fmt::format("<a href=\"/api/v1/numerics\">{} more rows</a>", all.size() - rows.size()));
  return out;
}

std::string scale_of_exponent(double exponent) {
  return scale_text(std::exp2(exponent));
}

// Doublings and halvings look alike at any level.
std::string scale_curve(const RoundPoints& points) {
  Curve curve{"Loss scale", {}, {}, scale_of_exponent, 0.1};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const float scale = points[i].loss_scale;
    if (scale <= 0 && curve.values.empty()) continue;  // the scaler had not begun
    curve.values.push_back(scale > 0 ? std::log2(static_cast<double>(scale))
                                     : std::numeric_limits<double>::quiet_NaN());
    if (i > 0 && points[i].plan != points[i - 1].plan)
      curve.marks.push_back(curve.values.size() - 1);
  }
  return sparkline(curve);
}

// "7, of the last 300 rounds 2.3 %"
std::string skipped_text(const Snapshot& s) {
  std::string text = grouped(s.view<ProgressView>().skipped_rounds);
  const RoundPoints& points = s.view<ProgressView>().points;
  if (points.empty() || s.view<ProgressView>().skipped_rounds == 0) return text;
  const auto skipped = std::ranges::count(points, true, &RoundPoint::was_skipped);
  const double ratio = static_cast<double>(skipped) / static_cast<double>(points.size());
  return fmt::format("{}, {} of the last {} rounds", text, percent_text(ratio, 1), points.size());
}

std::string rules_text(const ScalerRules& rules) {
  const auto scale = [](float value) { return scale_text(static_cast<double>(value)); };
  std::string text = fmt::format("×{} after {} clean steps, ×{}", scale(rules.growth_factor),
                                 grouped(rules.growth_interval), scale(rules.backoff_factor));
  text += rules.hysteresis > 1 ? " after " + grouped(rules.hysteresis) + " overflows in a row"
                               : " after an overflow";
  return fmt::format("{}, from {} to {}", text, scale(rules.min_scale), scale(rules.max_scale));
}

// "65536", with a mark where it cannot fall any further.
std::string scale_value(const Snapshot& s) {
  const float scale = s.view<NumericsView>().loss_scale;
  if (scale <= 0) return "none: no block needs one";
  const bool is_at_floor = scale <= s.plan->scaler.min_scale;
  return fmt::format("<b class=\"big\">{}</b>{}", scale_text(static_cast<double>(scale)),
                     is_at_floor ? " <span class=\"tag warn\">▼ at its floor</span>" : "");
}

std::string scaler_part(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  std::string out = facts({{"Loss scale", scale_value(s)},
                           {"Rounds with an overflow", grouped(view.overflow_rounds)},
                           {"Rounds with a skipped step", skipped_text(s)}});
  if (view.loss_scale > 0)
    out += scale_curve(s.view<ProgressView>().points) + hint(rules_text(s.plan->scaler));
  return "<div class=\"scaler\">" + out + "</div>";
}

// The newest overflow as one sentence; earlier ones folded away below it.
std::string overflow_part(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  const Overflow* last = view.last_overflow();
  if (last == nullptr) return {};
  const bool is_recent = last->round.value() + kRecentRounds >= s.summary.round.value();
  std::string out =
      fmt::format("<p class=\"group overflow{}\"><strong>Last overflow:</strong> {}</p>",
                  is_recent ? " note bad" : "", escape(overflow_text(*s.job, *last)));
  const std::size_t earlier = view.overflows.size() - 1;
  if (earlier == 0) return out;
  const std::size_t shown = std::min(earlier, kEarlierShown);
  out += fmt::format("<details class=\"group\"><summary>{}{}</summary><ul class=\"plain\">", shown,
                     shown == 1 ? " earlier one" : " earlier ones");
  for (std::size_t i = 0; i < shown; ++i)
    out += "<li>" + escape(overflow_text(*s.job, view.overflows[earlier - 1 - i])) + "</li>";
  return out + "</ul></details>";
}

}  // namespace

std::string numerics_section(const Snapshot& s) {
  if (!is_at_work(s.view<NumericsView>())) return {};
  return card(
      "Numerics",
      fmt::format("{}{}<div class=\"split\"><div>{}</div>{}</div>{}",
                  hint("What each block computes in, and how well that goes. A format changes on "
                       "all ranks in the same step. <a href=\"/api/v1/numerics\">All figures</a>."),
                  overflow_part(s), numerics_cells(s), scaler_part(s), numerics_table(s)));
}

}  // namespace cox::metrics
