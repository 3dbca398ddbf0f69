#include "metrics/block_groups.h"

#include <algorithm>
#include <set>

#include "coordinator/core/text.h"

namespace cox::metrics {

std::vector<BlockGroup> block_groups(const JobFacts& job) {
  std::vector<BlockGroup> groups;
  const std::size_t blocks = job.blocks.size();
  const std::size_t length = (blocks + kMostBlockSeries - 1) / kMostBlockSeries;
  std::set<std::string> taken = {"outside"};
  for (std::size_t first = 0; first < blocks; first += length) {
    const std::size_t last = std::min(first + length, blocks) - 1;
    std::string label = job.blocks[first];
    if (last > first) label += " to " + job.blocks[last];
    label = valid_utf8(label);
    if (!taken.insert(label).second) {  // two of one name would be one series twice
      label += " #" + std::to_string(first);
      taken.insert(label);
    }
    groups.push_back({std::move(label), first, last});
  }
  return groups;
}

}  // namespace cox::metrics
