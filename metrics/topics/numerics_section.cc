#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/pages/values.h"
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
constexpr std::uint64_t kRecentRounds = 100;  // older overflows are history
constexpr std::array<std::string_view, kPrecisions> kLetters = {"32", "bf", "16", "8"};

// Returns the rounds in which the block overflowed, in either pass.
std::uint64_t overflows(const BlockNumerics& block) {
  return block.overflow_rounds[0] + block.overflow_rounds[1];
}

// Returns whether the block overflowed lately. Older overflows are no news, because a scaler that
// probes its limit makes every block overflow at times.
bool is_hot(const BlockNumerics& block, RoundId now) {
  return overflows(block) > 0 && block.overflowed_round.value() + kLatelyRounds >= now.value();
}

// Returns "bf16", or "bf16, fp16 next".
std::string format_text(const BlockNumerics& block) {
  std::string text(to_string(block.format));
  if (block.planned != block.format) text += ", " + std::string(to_string(block.planned)) + " next";
  return text;
}

Record cell(const Snapshot& s, std::size_t index, const BlockNumerics& block,
            std::size_t prefix_length) {
  const std::string name = block_name(*s.job, index);
  const std::uint64_t rounds = overflows(block);
  const std::string text = grouped(rounds) + (rounds == 1 ? " round" : " rounds");
  return {{"format", static_cast<int>(block.format)},
          {"is_hot", is_hot(block, s.summary.round)},
          {"name", name},
          {"short_name", std::string_view(name).substr(prefix_length)},
          {"text", format_text(block)},
          {"letters", kLetters[static_cast<std::size_t>(block.format)]},
          {"overflowed", rounds > 0 ? text : ""},
          {"overflows", grouped(rounds)}};
}

List format_keys(const NumericsView& view) {
  const auto blocks = format_blocks(view);
  const auto all = static_cast<double>(std::max<std::size_t>(view.blocks.size(), 1));
  List keys;
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    if (blocks[k] == 0) continue;
    keys.push_back({{"format", k},
                    {"letters", kLetters[k]},
                    {"name", kPrecisionNames[k]},
                    {"blocks", concat(blocks[k], blocks[k] == 1 ? " block" : " blocks")},
                    {"share", percent_text(blocks[k] / all, 0)}});
  }
  return keys;
}

List strip_of(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  if (view.blocks.empty()) return {};
  const bool is_named = view.blocks.size() <= kNamedCells;
  const std::size_t prefix_length = is_named ? common_prefix(*s.job).size() : 0;
  List cells;
  for (std::size_t b = 0; b < view.blocks.size(); ++b)
    cells.push_back(cell(s, b, view.blocks[b], prefix_length));
  const auto is_hot_now = [&s](const BlockNumerics& block) {
    return is_hot(block, s.summary.round);
  };
  return {{{"is_named", is_named},
           {"cells", std::move(cells)},
           {"formats", format_keys(view)},
           {"any_hot", std::ranges::any_of(view.blocks, is_hot_now)}}};
}

// BlockRow is one row of the table. In models of many blocks, neighbours of one format share a row,
// which shows the worst values. A block that overflowed lately keeps a row of its own.
struct BlockRow {
  std::size_t first = 0;
  std::size_t last = 0;  // inclusive
  BlockNumerics worst;   // the largest values of the row's blocks; overflows add up
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

// Returns at most kRowsShown rows, in their order: first the rows that overflowed lately, then the
// first others.
std::vector<BlockRow> most_telling(std::vector<BlockRow> rows, RoundId now) {
  if (rows.size() <= kRowsShown) return rows;
  std::stable_partition(rows.begin(), rows.end(),
                        [now](const BlockRow& row) { return is_hot(row.worst, now); });
  rows.resize(kRowsShown);
  std::sort(rows.begin(), rows.end(),
            [](const BlockRow& a, const BlockRow& b) { return a.first < b.first; });
  return rows;
}

// Returns a figure and its tooltip; empty if the figure is unknown.
List known_figure(const Known& known, std::string text, std::string_view detail = "") {
  if (!known.is_known) return {};
  const std::string round = "round " + grouped(known.round.value());
  return {{{"title", detail.empty() ? round : concat("rank ", known.rank, ", ", round)},
           {"text", std::move(text)},
           {"detail", detail}}};
}

List ratio_figure(const Known& ratio) {
  return known_figure(ratio, ratio.value == 0 ? "0" : significant(100 * ratio.value, 2) + " %");
}

// Shows noise as a multiple of the signal. Larger multiples than kLost all mean that the signal is
// lost.
List noise_figure(const Known& noise) {
  constexpr double kLost = 1000;
  return known_figure(noise,
                      noise.value < kLost ? significant(noise.value, 2) + "×" : "over 1,000×");
}

List magnitude_figure(const Known& known) {
  return known_figure(known, significant(known.value, 3), concat("r", known.rank));
}

std::string overflows_text(const BlockNumerics& block) {
  std::string text;
  for (std::size_t p = 0; p < kPassNames.size(); ++p) {
    if (block.overflow_rounds[p] > 0)
      text +=
          concat(text.empty() ? "" : ", ", grouped(block.overflow_rounds[p]), " ", kPassNames[p]);
  }
  return text.empty() ? "0" : text;
}

// Returns the newest reason, or "as above" if the row above has the same reason.
std::string reason_text(const Reason* reason, const Reason* above) {
  if (reason == nullptr) return {};
  return above != nullptr && above->text == reason->text ? "as above" : reason->text;
}

Record row_of(const Snapshot& s, const BlockRow& row, const Reason* above) {
  const BlockNumerics& block = row.worst;
  return {{"name", block_names(*s.job, row.first, row.last)},
          {"format", static_cast<int>(block.format)},
          {"text", format_text(block)},
          {"since", block.changes > 0 ? grouped(block.changed_round.value()) : "start"},
          {"changes", block.changes > 1 ? grouped(block.changes) : ""},
          {"noise", noise_figure(block.noise)},
          {"underflow", ratio_figure(block.underflow)},
          {"clipped", ratio_figure(block.saturated)},
          {"activation", magnitude_figure(block.activation)},
          {"gradient", magnitude_figure(block.gradient)},
          {"is_hot", is_hot(block, s.summary.round)},
          {"overflows", overflows_text(block)},
          {"reason", reason_text(block.newest.get(), above)}};
}

List table_of(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  const std::vector<BlockRow> all = block_rows(view, s.summary.round);
  const std::vector<BlockRow> rows = most_telling(all, s.summary.round);
  const Reason* above = nullptr;
  List out = with_rows(list_of(rows,
                               [&](const BlockRow& row) {
                                 const Reason* newest = row.worst.newest.get();
                                 return row_of(s, row, std::exchange(above, newest));
                               }),
                       all.size());
  if (!out.empty()) out[0].add("is_shared", rows.size() < view.blocks.size());
  return out;
}

std::string scale_of_exponent(double exponent) {
  return scale_text(std::exp2(exponent));
}

// Uses logarithms, so doublings and halvings look alike at any level.
Curve scale_curve(const RoundPoints& points) {
  Curve curve{"Loss scale", {}, {}, scale_of_exponent, 0.1};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const float scale = points[i].loss_scale;
    if (scale <= 0 && curve.values.empty()) continue;  // the scaler had not started
    curve.values.push_back(scale > 0 ? std::log2(static_cast<double>(scale))
                                     : std::numeric_limits<double>::quiet_NaN());
    if (i > 0 && points[i].plan != points[i - 1].plan)
      curve.marks.push_back(curve.values.size() - 1);
  }
  return curve;
}

// Returns "7, 2.3 % of the last 300 rounds".
std::string skipped_text(const Snapshot& s) {
  std::string text = grouped(s.view<ProgressView>().skipped_rounds);
  const RoundPoints& points = s.view<ProgressView>().points;
  if (points.empty() || s.view<ProgressView>().skipped_rounds == 0) return text;
  const auto skipped = std::ranges::count(points, true, &RoundPoint::was_skipped);
  const double ratio = static_cast<double>(skipped) / static_cast<double>(points.size());
  return concat(text, ", ", percent_text(ratio, 1), " of the last ", points.size(), " rounds");
}

List scaler_of(const Snapshot& s) {
  const float scale = s.view<NumericsView>().loss_scale;
  if (scale <= 0) return {};
  const auto text = [](float value) { return scale_text(static_cast<double>(value)); };
  const ScalerRules& rules = s.plan->scaler;
  return {{{"scale", text(scale)},
           {"is_at_floor", scale <= rules.min_scale},
           {"curve", sparkline(scale_curve(s.view<ProgressView>().points))},
           {"growth", text(rules.growth_factor)},
           {"interval", grouped(rules.growth_interval)},
           {"backoff", text(rules.backoff_factor)},
           {"overflows_in_a_row", rules.hysteresis > 1 ? grouped(rules.hysteresis) : ""},
           {"least", text(rules.min_scale)},
           {"most", text(rules.max_scale)}}};
}

// Returns the newest overflow as one sentence, and earlier overflows for the fold below.
List overflow_of(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  const Overflow* last = view.last_overflow();
  if (last == nullptr) return {};
  const std::size_t earlier = std::min(view.overflows.size() - 1, kEarlierShown);
  const auto text_of = [&s](const Overflow& overflow) {
    return Record{{"text", overflow_text(*s.job, overflow)}};
  };
  const auto older = std::span(view.overflows).first(view.overflows.size() - 1);
  return {{{"newest", overflow_text(*s.job, *last)},
           {"is_recent", last->round.value() + kRecentRounds >= s.summary.round.value()},
           {"earlier", earlier == 0 ? ""
                                    : concat(earlier, earlier == 1 ? " earlier overflow"
                                                                   : " earlier overflows")},
           {"older", newest_of(older, text_of, earlier)}}};
}

}  // namespace

Record numerics_section(const Snapshot& s) {
  const NumericsView& view = s.view<NumericsView>();
  if (!is_at_work(view)) return {};
  return {{"overflow", overflow_of(s)}, {"strip", strip_of(s)},
          {"scaler", scaler_of(s)},     {"overflow_rounds", grouped(view.overflow_rounds)},
          {"skipped", skipped_text(s)}, {"table", table_of(s)}};
}

}  // namespace cox::metrics
