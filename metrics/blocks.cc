#include "metrics/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/core/text.h"

namespace cox::metrics {
namespace {

bool goes_on(std::string_view text, std::size_t at) {
  if (at >= text.size()) return false;
  const auto c = static_cast<unsigned char>(text[at]);
  const bool is_inner_dot = c == '.' && at + 1 < text.size() && text[at + 1] != ' ';
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         is_inner_dot;
}

// Returns the block whose name starts `text` as a whole word.
std::optional<std::size_t> block_at(const JobFacts& job, std::string_view text) {
  for (std::size_t b = 0; b < job.blocks.size(); ++b) {
    const std::string& name = job.blocks[b];
    if (!name.empty() && text.starts_with(name) && !goes_on(text, name.size())) return b;
  }
  return std::nullopt;
}

}  // namespace

std::string block_name(const JobFacts& job, std::size_t block) {
  return block < job.blocks.size() ? job.blocks[block] : fmt::format("block {}", block);
}

std::optional<std::string> named_block(const JobFacts& job, std::int32_t block) {
  if (block < 0) return std::nullopt;
  return block_name(job, static_cast<std::size_t>(block));
}

std::string block_names(const JobFacts& job, std::size_t first, std::size_t last) {
  if (first == last) return block_name(job, first);
  return fmt::format("{} to {} ({})", block_name(job, first), block_name(job, last),
                     last - first + 1);
}

std::string common_prefix(const JobFacts& job) {
  if (job.blocks.size() < 2) return {};
  std::string prefix = job.blocks.front();
  for (const std::string& name : job.blocks) {
    const auto ends = std::mismatch(prefix.begin(), prefix.end(), name.begin(), name.end());
    prefix.erase(ends.first, prefix.end());
  }
  const auto dot = prefix.rfind('.');
  return dot == std::string::npos ? std::string() : prefix.substr(0, dot + 1);
}

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

std::vector<BlockGroup> block_groups(const JobFacts& job) {
  std::vector<BlockGroup> groups;
  const std::size_t blocks = job.blocks.size();
  const std::size_t length = (blocks + kMostBlockSeries - 1) / kMostBlockSeries;
  std::set<std::string> taken = {"outside"};
  for (std::size_t first = 0; first < blocks; first += length) {
    const std::size_t last = std::min(first + length, blocks) - 1;
    std::string label = job.blocks[first];
    if (last > first) label += fmt::format(" to {}", job.blocks[last]);
    label = valid_utf8(label);
    if (!taken.insert(label).second) {  // two equal labels would be one series twice
      label += fmt::format(" #{}", first);
      taken.insert(label);
    }
    groups.push_back({std::move(label), first, last});
  }
  return groups;
}

}  // namespace cox::metrics
