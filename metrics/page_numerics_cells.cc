#include <algorithm>
#include <array>
#include <string_view>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/numerics_rows.h"
#include "metrics/page_numerics.h"
#include "metrics/plan_view.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kNamedCells = 48;  // blocks; more are drawn as small cells

constexpr std::array<std::string_view, kPrecisions> kLetters = {"32", "bf", "16", "8"};

struct CellFacts {
  const JobFacts& job;
  RoundId now;
  std::size_t prefix_length;  // npos = letters only
};

std::string cell(const CellFacts& facts, std::size_t index, const BlockNumerics& block) {
  const std::string name = block_name(facts.job, index);
  const std::uint64_t rounds = overflows(block);
  const bool hot = is_hot(block, facts.now);
  std::string out = "<li class=\"" + format_class(block.format) + (hot ? " hot" : "") +
                    "\" title=\"" + escape(name) + ": " + format_text(block);
  if (rounds > 0)
    out += "; overflowed in " + grouped(rounds) + (rounds == 1 ? " round" : " rounds");
  out += "\">";
  if (facts.prefix_length == std::string::npos)
    return out + std::string(hot ? "▲" : kLetters[static_cast<std::size_t>(block.format)]) +
           "</li>";
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
    out += "<li><i class=\"q" + std::to_string(k) + "\">" +
           std::string(is_named ? "" : kLetters[k]) + "</i>" + std::string(kPrecisionNames[k]) +
           ": " + std::to_string(blocks[k]) + (blocks[k] == 1 ? " block" : " blocks") + ", " +
           percent_text(blocks[k] / all, 0) + "</li>";
  }
  const bool any_hot =
      std::any_of(view.blocks.begin(), view.blocks.end(),
                  [now](const BlockNumerics& block) { return is_hot(block, now); });
  if (any_hot) out += "<li><i class=\"hot\">▲</i>overflowed lately</li>";
  return out + "</ul>";
}

}  // namespace

std::string format_class(Precision format) {
  return "q" + std::to_string(static_cast<int>(format));
}

std::string format_text(const BlockNumerics& block) {
  std::string text(to_string(block.format));
  if (block.planned != block.format) text += ", " + std::string(to_string(block.planned)) + " next";
  return text;
}

std::string numerics_cells(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  const bool is_named = view.blocks.size() <= kNamedCells;
  const std::size_t prefix_length = is_named ? common_prefix(*s.job).size() : std::string::npos;
  std::string out = is_named ? "<ul class=\"strip\">" : "<ul class=\"strip lettered\">";
  const CellFacts facts{*s.job, s.summary.round, prefix_length};
  for (std::size_t b = 0; b < view.blocks.size(); ++b) out += cell(facts, b, view.blocks[b]);
  return view.blocks.empty() ? "" : out + "</ul>" + key(view, is_named, s.summary.round);
}

}  // namespace cox::metrics
