#include "sdk/src/memory/storage_levels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::detail {
namespace {

using planner::KeptSet;
using planner::StorageFront;
using planner::StoragePoint;

// A level must drop at least this part of the droppable bytes to be worth a tape. The level of
// least peak must lower the peak by as much.
constexpr double kLeastDropped = 0.02;

// Returns the points that lose the least time, at most `most`.
std::vector<StoragePoint> by_time(const planner::OperatorGraph& graph, const StorageFront& front,
                                  std::size_t most) {
  const auto saved = static_cast<double>(planner::saved_bytes(graph));
  const StoragePoint& free = front.points.back();
  const bool drops_for_nothing = static_cast<double>(free.held_bytes) < (1 - kLeastDropped) * saved;
  std::vector<StoragePoint> points;
  for (const std::size_t at : planner::levels(front, most - (drops_for_nothing ? 1 : 0)))
    points.push_back(front.points[at]);
  if (drops_for_nothing) points.push_back(free);
  return points;
}

// Returns the points that become levels, the lightest first.
std::vector<StoragePoint> chosen(const planner::OperatorGraph& graph) {
  const StorageFront front = planner::storage_front(graph);
  const auto full = static_cast<double>(planner::chain_bytes(front.points[0]));
  std::vector<StoragePoint> points = by_time(graph, front, kRecomputeLevels);
  const StoragePoint least = planner::least_alive(graph);
  const bool lowers_peak =
      static_cast<double>(planner::chain_bytes(least)) < (1 - kLeastDropped) * full;
  if (lowers_peak && std::ranges::find(points, least.kept, &StoragePoint::kept) == points.end()) {
    points = by_time(graph, front, kRecomputeLevels - 1);
    points.push_back(least);
  }
  std::ranges::stable_sort(points, std::ranges::greater{}, &StoragePoint::held_bytes);
  return points;
}

}  // namespace

StorageLevels::StorageLevels(const MeasuredRegions& regions, BlockSteering& steering)
    : blocks_(regions.size()) {
  for (std::size_t b = 0; b < regions.size(); ++b) {
    if (regions[b]) choose_levels(b, *regions[b], steering);
  }
}

void StorageLevels::choose_levels(std::size_t block, const MeasuredRegion& region,
                                  BlockSteering& steering) {
  Block& it = blocks_[block];
  it.full_ns = planner::slice(region.graph, KeptSet(region.graph.storages.size(), false)).ns;
  std::vector<HoldChoice> choices;
  for (const StoragePoint& point : chosen(region.graph)) {
    it.levels_ns.push_back(point.replay_ns);
    choices.push_back(choice_of(region, point.kept));
  }
  steering.set_levels(BlockId(static_cast<BlockId::rep>(block)), std::move(choices));
}

unsigned StorageLevels::count(std::size_t block) const {
  return static_cast<unsigned>(blocks_[block].levels_ns.size());
}

std::int64_t StorageLevels::added_us(std::size_t block, MemoryAction action) const {
  const unsigned level = level_of(action);
  const std::int64_t ns = level == 0 ? blocks_[block].full_ns : blocks_[block].levels_ns[level - 1];
  return (ns + 999) / 1000;
}

}  // namespace cox::detail
