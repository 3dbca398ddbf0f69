#include "sdk/src/memory/storage_levels.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

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

// The points that become levels, the lightest first, and what may take the place of one of them.
struct Chosen {
  std::vector<StoragePoint> points;
  std::size_t proposed = 0;
  std::vector<StoragePoint> proposals;
};

Chosen chosen(const planner::OperatorGraph& graph) {
  const StorageFront front = planner::storage_front(graph);
  const auto full = static_cast<double>(front.points[0].alive_bytes);
  Chosen all{by_time(graph, front, kRecomputeLevels), 0, planner::least_alive(graph)};
  const KeptSet least = all.proposals[0].kept;
  const auto is_least = [&](const StoragePoint& it) { return it.kept == least; };
  if (static_cast<double>(all.proposals[0].alive_bytes) >= (1 - kLeastDropped) * full) {
    all.proposals.clear();
  } else if (std::ranges::none_of(all.points, is_least)) {
    all.points = by_time(graph, front, kRecomputeLevels - 1);
    all.points.push_back(all.proposals[0]);
  }
  std::ranges::stable_sort(all.points, std::ranges::greater{}, &StoragePoint::held_bytes);
  const auto place = std::ranges::find_if(all.points, is_least);
  all.proposed = static_cast<std::size_t>(place - all.points.begin());
  return all;
}

using Regions = std::vector<std::optional<MeasuredRegion>>;

// Of everything but times; 0 where nothing was measured.
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
  std::map<std::uint64_t, std::size_t> first;
  for (std::size_t b = 0; b < regions_.size(); ++b) {
    blocks_[b].like = first.try_emplace(digest_of(regions_[b]), b).first->second;
    if (regions_[b]) choose_levels(b);
  }
  regions_.clear();
}

void StorageLevels::choose_levels(std::size_t block) {
  const MeasuredRegion& region = *regions_[block];
  Block& it = blocks_[block];
  it.full_ns = planner::slice(region.graph, KeptSet(region.graph.storages.size(), false)).ns;
  const auto level_of = [&region](const StoragePoint& point) {
    return Level{point.replay_ns, choice_of(region, point.kept)};
  };
  const Chosen all = chosen(region.graph);
  it.proposed = all.proposed;
  std::ranges::transform(all.points, std::back_inserter(it.levels), level_of);
  if (all.proposals.size() > 1)
    std::ranges::transform(all.proposals, std::back_inserter(it.proposals), level_of);
  show_levels(block);
}

void StorageLevels::show_levels(std::size_t block) {
  std::vector<HoldChoice> choices;
  for (const Level& it : blocks_[block].levels) choices.push_back(it.choice);
  visits_.set_levels(BlockId(static_cast<BlockId::rep>(block)), std::move(choices));
}

unsigned StorageLevels::proposed_level(std::size_t block) const {
  const Block& it = blocks_[block];
  const bool is_tried = !it.proposals.empty() && it.like == block;
  return is_tried ? static_cast<unsigned>(it.proposed) + 1 : 0;
}

std::size_t StorageLevels::proposals() const {
  std::size_t most = 0;
  for (const Block& it : blocks_) most = std::max(most, it.proposals.size());
  return most;
}

void StorageLevels::try_proposal(std::size_t proposal) {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Block& it = blocks_[b];
    if (proposal >= it.proposals.size()) continue;
    it.levels[it.proposed] = it.proposals[proposal];
    show_levels(b);
  }
}

void StorageLevels::choose_proposal(std::size_t block, std::size_t proposal) {
  for (std::size_t b = block; b < blocks_.size(); ++b) {
    Block& it = blocks_[b];
    if (it.like != block || proposal >= it.proposals.size()) continue;
    it.levels[it.proposed] = it.proposals[proposal];
    it.proposals.clear();
    show_levels(b);
  }
}

unsigned StorageLevels::count(std::size_t block) const {
  return static_cast<unsigned>(blocks_[block].levels.size());
}

std::int64_t StorageLevels::added_us(std::size_t block, MemoryAction action) const {
  const unsigned level = level_of(action);
  const std::int64_t ns = level == 0 ? blocks_[block].full_ns : blocks_[block].levels[level - 1].ns;
  return (ns + 999) / 1000;
}

}  // namespace cox::detail
