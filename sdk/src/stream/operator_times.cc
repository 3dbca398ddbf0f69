#include "sdk/src/stream/operator_times.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cox::detail {
namespace {

constexpr std::int32_t kNone = TapeRecords::kNone;

std::size_t at(std::int32_t index) {
  return static_cast<std::size_t>(index);
}

class RegionBuilder {
 public:
  explicit RegionBuilder(const TapeRecords& records) : records_(records) {}

  MeasuredRegion run() {
    for (std::size_t s = 0; s < records_.storages.size(); ++s)
      add_storage(records_.measured->storage_bytes[s], records_.storages[s].maker);
    for (std::size_t i = 0; i < records_.operators.size(); ++i) add_operator(i);
    for (const TapeRecords::SavedNote& note : records_.measured->saved) add_saved(note);
    return std::move(region_);
  }

 private:
  std::int32_t add_storage(std::int64_t bytes, std::int32_t maker) {
    region_.graph.storages.push_back({bytes, maker, false});
    region_.saved.emplace_back();
    return static_cast<std::int32_t>(region_.graph.storages.size()) - 1;
  }

  void add_operator(std::size_t index) {
    const TapeRecords::Operator& it = records_.operators[index];
    planner::GraphOperator made;
    made.name = it.handle.operator_name().name;
    made.ns = std::max<std::int64_t>(0, records_.measured->operators[index].ns);
    made.own_bytes = records_.measured->operators[index].own_bytes;
    for (std::size_t i = 0; i < it.arguments; ++i) {
      const TapeRecords::Argument& argument = records_.arguments[it.first_argument + i];
      if (argument.kind == TapeRecords::ArgumentKind::integers) continue;
      for (std::uint32_t r = 0; r < argument.count; ++r) {
        const TapeRecords::Reference& read = records_.references[argument.first + r];
        if (read.source == TapeRecords::Source::result) made.reads.push_back(value_of(read));
      }
    }
    const auto writes = records_.writes_of(it);
    made.writes.assign(writes.begin(), writes.end());
    region_.graph.operators.push_back(std::move(made));
  }

  planner::ValueRead value_of(const TapeRecords::Reference& read) const {
    planner::ValueRead value{read.index, read.storage, read.writes, false};
    if (read.storage == kNone) return value;
    const TapeRecords::Storage& storage = records_.storages[at(read.storage)];
    value.can_be_kept =
        read.is_plain && read.type == storage.type && !storage.is_lost && !storage.counts_apart;
    return value;
  }

  void add_saved(const TapeRecords::SavedNote& note) {
    if (note.is_forced) {
      if (note.storage != kNone) region_.graph.storages[at(note.storage)].is_held = true;
      return;
    }
    const std::int32_t storage = note.storage != kNone ? note.storage : apart(note);
    planner::SavedRead save{storage, note.can_serve, note.is_by_value, {}};
    if (note.is_by_value) save.value = value_of(note.value);
    region_.graph.operators[at(note.key.saver)].saves.push_back(save);
    note_mask(region_.graph.storages[at(storage)], note, region_.saved[at(storage)].empty());
    region_.saved[at(storage)].push_back(note.key);
  }

  // A storage is kept packed only if all of its saved tensors can be packed.
  static void note_mask(planner::GraphStorage& storage, const TapeRecords::SavedNote& note,
                        bool is_first) {
    if (is_first || note.packed_bytes == 0) storage.packed_bytes = note.packed_bytes;
  }

  // Memory saved by an operator that did not return it.
  std::int32_t apart(const TapeRecords::SavedNote& note) {
    if (note.key.saver != apart_of_ || note.address != apart_address_ || note.address == nullptr)
      apart_storage_ = add_storage(note.bytes, note.key.saver);
    apart_of_ = note.key.saver;
    apart_address_ = note.address;
    return apart_storage_;
  }

  const TapeRecords& records_;
  MeasuredRegion region_;
  std::int32_t apart_of_ = kNone;
  const c10::StorageImpl* apart_address_ = nullptr;
  std::int32_t apart_storage_ = kNone;
};

}  // namespace

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

MeasuredRegion measured_region(const Tape& tape) {
  MeasuredRegion region = RegionBuilder(tape.records()).run();
  region.meter = tape.meter();
  return region;
}

bool is_alike(const planner::OperatorGraph& a, const planner::OperatorGraph& b) {
  return a.storages == b.storages &&
         std::ranges::equal(a.operators, b.operators,
                            [](const planner::GraphOperator& x, const planner::GraphOperator& y) {
                              return x.name == y.name && x.reads == y.reads &&
                                     x.writes == y.writes && x.saves == y.saves;
                            });
}

void take_lesser(MeasuredRegion& region, const MeasuredRegion& newer) {
  auto other = newer.graph.operators.begin();
  for (planner::GraphOperator& it : region.graph.operators) {
    it.ns = std::min(it.ns, other->ns);
    it.own_bytes = std::min(it.own_bytes, other->own_bytes);
    ++other;
  }
  region.meter = newer.meter;
}

void learn_backward(MeasuredRegion& region) {
  std::vector<planner::BackwardLevels> levels = region.meter->end();
  std::erase_if(levels, [&region](const planner::BackwardLevels& it) {
    return at(it.op) >= region.graph.operators.size();  // an operator that failed
  });
  planner::learn_backward(region.graph, planner::KeptSet(region.graph.storages.size(), false),
                          levels);
}

HoldChoice choice_of(const MeasuredRegion& region, const planner::KeptSet& kept) {
  std::vector<TapeRecords::SavedKey> dropped;
  for (std::size_t s = 0; s < kept.size(); ++s) {
    if (!kept[s]) dropped.insert(dropped.end(), region.saved[s].begin(), region.saved[s].end());
  }
  std::ranges::sort(dropped);
  return [dropped = std::move(dropped)](const SavedValue& value) {
    return std::ranges::binary_search(dropped, value.key) ? Hold::drop : Hold::keep;
  };
}

}  // namespace cox::detail
