#include "metrics/block_range.h"

namespace cox::metrics {
namespace {

bool goes_on(std::string_view text, std::size_t at) {
  if (at >= text.size()) return false;
  const auto c = static_cast<unsigned char>(text[at]);
  const bool is_inner_dot = c == '.' && at + 1 < text.size() && text[at + 1] != ' ';
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         is_inner_dot;
}

// The block whose name `text` starts with, as a whole word.
std::optional<std::size_t> block_at(const JobFacts& job, std::string_view text) {
  for (std::size_t b = 0; b < job.blocks.size(); ++b) {
    const std::string& name = job.blocks[b];
    if (!name.empty() && text.starts_with(name) && !goes_on(text, name.size())) return b;
  }
  return std::nullopt;
}

}  // namespace

std::optional<BlockRange> blocks_named_in(const JobFacts& job, std::string_view text) {
  constexpr std::string_view kBlocks = "blocks ";
  constexpr std::string_view kTo = " to ";
  for (auto at = text.find(kBlocks); at != text.npos; at = text.find(kBlocks, at + 1)) {
    const std::string_view rest = text.substr(at + kBlocks.size());
    const auto first = block_at(job, rest);
    if (!first) continue;
    const std::string_view after = rest.substr(job.blocks[*first].size());
    if (!after.starts_with(kTo)) continue;
    const auto last = block_at(job, after.substr(kTo.size()));
    if (last && *last >= *first) return BlockRange{*first, *last};
  }
  return std::nullopt;
}

}  // namespace cox::metrics
