#include "sdk/src/memory/storage_levels.h"

#include <algorithm>

#include "coordinator/planner/operator_graph.h"
#include "sdk/src/stream/operator_times.h"

namespace cox::detail {
namespace {

using planner::KeptSet;
using planner::StorageFront;

// A level that drops less than this part of what may be dropped is not worth a tape.
constexpr double kLeastDropped = 0.02;

// Returns the points that become levels, the lightest first.
std::vector<std::size_t> chosen(const planner::OperatorGraph& graph, const StorageFront& front) {
  const KeptSet all(graph.storages.size(), true);
  const auto most = static_cast<double>(planner::held_bytes(graph, all));
  const std::size_t last = front.points.size() - 1;
  const bool drops_for_nothing =
      static_cast<double>(front.points[last].held_bytes) < (1 - kLeastDropped) * most;
  std::vector<std::size_t> points =
      planner::levels(front, kRecomputeLevels - (drops_for_nothing ? 1 : 0));
  if (drops_for_nothing) points.push_back(last);
  std::ranges::reverse(points);
  return points;
}

}  // namespace

StorageLevels::StorageLevels(VisitWatch& visits) : visits_(visits) {
  visits_.begin_regions();
}

void StorageLevels::learn() {
  const auto regions = visits_.end_regions();
  blocks_.assign(regions.size(), {});
  for (std::size_t b = 0; b < regions.size(); ++b) {
    if (!regions[b]) continue;
    const planner::OperatorGraph& graph = regions[b]->graph;
    blocks_[b].full_ns = planner::slice(graph, KeptSet(graph.storages.size(), false)).ns;
    const StorageFront front = planner::storage_front(graph);
    std::vector<HoldChoice> choices;
    for (const std::size_t point : chosen(graph, front)) {
      blocks_[b].level_ns.push_back(front.points[point].replay_ns);
      choices.push_back(choice_of(*regions[b], front.points[point].kept));
    }
    visits_.set_levels(BlockId(static_cast<BlockId::rep>(b)), std::move(choices));
  }
}

unsigned StorageLevels::count(std::size_t block) const {
  return static_cast<unsigned>(blocks_[block].level_ns.size());
}

std::int64_t StorageLevels::added_us(std::size_t block, MemoryAction action) const {
  const unsigned level = level_of(action);
  const std::int64_t ns = level == 0 ? blocks_[block].full_ns : blocks_[block].level_ns[level - 1];
  return (ns + 999) / 1000;
}

}  // namespace cox::detail
