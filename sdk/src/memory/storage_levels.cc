#include "sdk/src/memory/storage_levels.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/planner/operator_graph.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/stream/operator_times.h"

namespace cox::detail {
namespace {

using planner::KeptSet;
using planner::StorageFront;

// A level that drops less than this part of what may be dropped is not worth a tape.
constexpr double kLeastDropped = 0.02;

// Returns the points that become levels, the lightest first.
std::vector<std::size_t> chosen(const planner::OperatorGraph& graph, const StorageFront& front) {
  const auto most = static_cast<double>(planner::saved_bytes(graph));
  const std::size_t last = front.points.size() - 1;
  const bool drops_for_nothing =
      static_cast<double>(front.points[last].held_bytes) < (1 - kLeastDropped) * most;
  std::vector<std::size_t> points =
      planner::levels(front, kRecomputeLevels - (drops_for_nothing ? 1 : 0));
  if (drops_for_nothing) points.push_back(last);
  std::ranges::reverse(points);
  return points;
}

using Regions = std::vector<std::optional<MeasuredRegion>>;

// Of everything but times.
std::uint64_t digest_of(const Regions& regions) {
  Fnv1a64 hash;
  const auto add = [&hash](std::int64_t number) { hash.add(static_cast<std::uint64_t>(number)); };
  for (const std::optional<MeasuredRegion>& region : regions) {
    add(region ? static_cast<std::int64_t>(region->graph.operators.size()) : -1);
    if (!region) continue;
    for (const planner::GraphStorage& it : region->graph.storages) {
      add(it.bytes);
      add(it.maker);
      add(it.packed_bytes);
    }
    for (const planner::GraphOperator& it : region->graph.operators) {
      hash.add(it.name);
      for (const planner::ValueRead& read : it.reads) add(read.from);
      for (const planner::SavedRead& save : it.saves) add(save.storage);
    }
  }
  return hash.value();
}

at::Tensor times_of(const Regions& regions) {
  std::vector<std::int64_t> times;
  for (const std::optional<MeasuredRegion>& region : regions) {
    if (!region) continue;
    for (const planner::GraphOperator& it : region->graph.operators) times.push_back(it.ns);
  }
  return at::tensor(times, at::kLong);
}

void set_times(Regions& regions, const at::Tensor& times) {
  const std::int64_t* next = times.const_data_ptr<std::int64_t>();
  for (std::optional<MeasuredRegion>& region : regions) {
    if (!region) continue;
    for (planner::GraphOperator& it : region->graph.operators) it.ns = *next++;
  }
}

}  // namespace

StorageLevels::StorageLevels(VisitWatch& visits) : visits_(visits) {
  visits_.begin_regions();
}

void StorageLevels::learn() {
  if (std::exchange(is_learnt_, true)) return;
  regions_ = visits_.end_regions();
  choose();
}

Status StorageLevels::learn_together(transport::Communicator& ranks) {
  is_learnt_ = true;
  regions_ = visits_.end_regions();
  const auto digests = gather_values(ranks, digest_of(regions_));
  if (!digests.ok()) return digests.status();
  if (ranks_that_differ(*digests).empty()) {
    const at::Tensor times = times_of(regions_);
    if (Status told = broadcast_from_root(ranks, {times}); !told.ok()) return told;
    set_times(regions_, times);
  }
  choose();
  return ok_status();
}

void StorageLevels::choose() {
  blocks_.assign(regions_.size(), {});
  for (std::size_t b = 0; b < regions_.size(); ++b) {
    if (!regions_[b]) continue;
    const planner::OperatorGraph& graph = regions_[b]->graph;
    blocks_[b].full_ns = planner::slice(graph, KeptSet(graph.storages.size(), false)).ns;
    const StorageFront front = planner::storage_front(graph);
    std::vector<HoldChoice> choices;
    for (const std::size_t point : chosen(graph, front)) {
      blocks_[b].level_ns.push_back(front.points[point].replay_ns);
      choices.push_back(choice_of(*regions_[b], front.points[point].kept));
    }
    visits_.set_levels(BlockId(static_cast<BlockId::rep>(b)), std::move(choices));
  }
  regions_.clear();
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
