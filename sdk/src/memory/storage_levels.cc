#include "sdk/src/memory/storage_levels.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/planner/operator_graph.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/stream/operator_times.h"

namespace cox::detail {
namespace {

using planner::KeptSet;
using planner::StorageFront;
using planner::StoragePoint;

// A level that drops less than this part of what may be dropped is not worth a tape, nor is one for
// the least peak that lowers it by less.
constexpr double kLeastDropped = 0.02;

// Returns the points with which the least time is lost, at most `most`.
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

using Regions = std::vector<std::optional<MeasuredRegion>>;

// Of everything but what was measured; 0 where nothing was.
std::uint64_t digest_of(const std::optional<MeasuredRegion>& region) {
  if (!region) return 0;
  Fnv1a64 hash;
  const auto add = [&hash](std::int64_t number) { hash.add(static_cast<std::uint64_t>(number)); };
  add(static_cast<std::int64_t>(region->graph.operators.size()));
  for (const planner::GraphStorage& it : region->graph.storages) {
    add(it.bytes);
    add(it.maker);
    add(it.packed_bytes);
    add(it.is_held ? 1 : 0);
  }
  for (const planner::GraphOperator& it : region->graph.operators) {
    hash.add(it.name);
    for (const planner::ValueRead& read : it.reads) add(read.from);
    for (const planner::SavedRead& save : it.saves) add(save.storage);
  }
  return hash.value();
}

std::uint64_t digest_of(const Regions& regions) {
  Fnv1a64 hash;
  for (const std::optional<MeasuredRegion>& region : regions) hash.add(digest_of(region));
  return hash.value();
}

// What was measured, of one operator after the other.
using Figures = std::array<std::int64_t planner::GraphOperator::*, 4>;
constexpr Figures kFigures = {&planner::GraphOperator::ns, &planner::GraphOperator::own_bytes,
                              &planner::GraphOperator::asking_bytes,
                              &planner::GraphOperator::backward_bytes};

at::Tensor figures_of(const Regions& regions) {
  std::vector<std::int64_t> figures;
  for (const std::optional<MeasuredRegion>& region : regions) {
    if (!region) continue;
    for (const planner::GraphOperator& it : region->graph.operators) {
      for (const auto figure : kFigures) figures.push_back(it.*figure);
    }
  }
  return at::tensor(figures, at::kLong);
}

void set_figures(Regions& regions, const at::Tensor& figures) {
  const std::int64_t* next = figures.const_data_ptr<std::int64_t>();
  for (std::optional<MeasuredRegion>& region : regions) {
    if (!region) continue;
    for (planner::GraphOperator& it : region->graph.operators) {
      for (const auto figure : kFigures) it.*figure = *next++;
    }
  }
}

MemoryLevel level_of(const TensorMemory& memory) {
  const MemoryCount count = memory.count();
  memory.reset_peak();
  return {count.live_bytes, count.peak_bytes};
}

}  // namespace

StorageLevels::StorageLevels(SteeredRegion& region, BlockSteering& steering, TensorMemory memory)
    : region_(region), steering_(steering) {
  region_.begin_measuring([memory] { return level_of(memory); });
}

void StorageLevels::learn() {
  choose(region_.end_measuring());
}

Status StorageLevels::learn_together(transport::Communicator& ranks) {
  Regions regions = region_.end_measuring();
  const auto digests = gather_values(ranks, digest_of(regions));
  if (!digests.ok()) return digests.status();
  if (ranks_that_differ(*digests).empty()) {
    const at::Tensor figures = figures_of(regions);
    if (Status told = broadcast_from_root(ranks, {figures}); !told.ok()) return told;
    set_figures(regions, figures);
  }
  choose(regions);
  return ok_status();
}

void StorageLevels::choose(const Regions& regions) {
  blocks_.assign(regions.size(), {});
  for (std::size_t b = 0; b < regions.size(); ++b) {
    if (regions[b]) choose_levels(b, *regions[b]);
  }
}

void StorageLevels::choose_levels(std::size_t block, const MeasuredRegion& region) {
  Block& it = blocks_[block];
  it.full_ns = planner::slice(region.graph, KeptSet(region.graph.storages.size(), false)).ns;
  std::vector<HoldChoice> choices;
  for (const StoragePoint& point : chosen(region.graph)) {
    it.levels_ns.push_back(point.replay_ns);
    choices.push_back(choice_of(region, point.kept));
  }
  steering_.set_levels(BlockId(static_cast<BlockId::rep>(block)), std::move(choices));
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
