#include "coordinator/planner/replay_model.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace cox::planner {
namespace {

constexpr std::int32_t kNobody = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

}  // namespace

ReplayModel::ReplayModel(const OperatorGraph& graph)
    : graph_(graph),
      writers_(graph.storages.size()),
      saves_in_(graph.storages.size()),
      first_saver_(graph.storages.size(), kNobody),
      first_holder_(graph.storages.size(), kNobody),
      makes_(graph.operators.size()),
      objects_(graph.storages.size()),
      needed_((graph.operators.size() + 63) / 64),
      last_use_(graph.operators.size()) {
  write_counts_.resize(graph.storages.size());
  for (const GraphOperator& it : graph.operators) {
    for (const Index s : it.writes) ++write_counts_[at(s)];
  }
  for (std::size_t i = 0; i < graph.operators.size(); ++i) add_operator(static_cast<Index>(i));
  add_first_savers();
  add_objects();
  states_.resize(saves_.size());
  waits_in_.resize(saves_.size());
}

ReplayModel::Value ReplayModel::value_of(const ValueRead& read) {
  Value value;
  value.from = read.from;
  value.source = read.storage;
  value.needs.first = static_cast<std::uint32_t>(needs_.size());
  needs_.push_back(read.from);
  if (read.storage != kOutside) {
    const auto& writers = writers_[at(read.storage)];
    needs_.insert(needs_.end(), writers.begin(), writers.begin() + read.writes);
    if (read.can_be_kept && read.writes == write_counts_[at(read.storage)])
      value.storage = read.storage;
  }
  value.needs.end = static_cast<std::uint32_t>(needs_.size());
  return value;
}

void ReplayModel::add_operator(Index index) {
  const GraphOperator& it = graph_.operators[at(index)];
  Span reads{static_cast<std::uint32_t>(reads_.size()), 0};
  for (const ValueRead& read : it.reads) reads_.push_back(value_of(read));
  reads.end = static_cast<std::uint32_t>(reads_.size());
  reads_of_.push_back(reads);
  Span saves{static_cast<std::uint32_t>(saves_.size()), 0};
  for (const SavedRead& read : it.saves) {
    saves_in_[at(read.storage)].push_back(saves_.size());
    saves_.push_back(
        {index, read.storage, read.by_value, read.by_value ? value_of(read.value) : Value{}});
  }
  saves.end = static_cast<std::uint32_t>(saves_.size());
  saves_of_.push_back(saves);
  for (const Index s : it.writes) writers_[at(s)].push_back(index);
}

void ReplayModel::add_first_savers() {
  for (std::size_t i = graph_.operators.size(); i-- > 0;) {
    for (const SavedRead& save : graph_.operators[i].saves) {
      first_holder_[at(save.storage)] = static_cast<Index>(i);
      if (save.is_last_state) first_saver_[at(save.storage)] = static_cast<Index>(i);
    }
  }
}

// Results lie in the storages that an operator makes, and in those that other operators read from
// it.
void ReplayModel::add_objects() {
  for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
    makes_[at(graph_.storages[s].maker)].push_back(static_cast<Index>(s));
    objects_[s].push_back(graph_.storages[s].maker);
  }
  const auto add = [&](const Value& value) {
    if (value.source != kOutside) objects_[at(value.source)].push_back(value.from);
  };
  for (const Value& read : reads_) add(read);
  for (const Save& save : saves_) {
    if (save.by_value) add(save.value);
  }
  for (auto& objects : objects_) {
    std::ranges::sort(objects);
    objects.erase(std::unique(objects.begin(), objects.end()), objects.end());
  }
}

std::int64_t ReplayModel::nanoseconds(const KeptSet& kept) {
  begin(kept);
  walk(nullptr);
  return ns_;
}

Slice ReplayModel::slice(const KeptSet& kept) {
  begin(kept);
  Slice slice;
  position_ = static_cast<Index>(graph_.operators.size()) - 1;
  held_bytes_ = kept_alive();
  slice.bytes_with_held = slice.bytes_with_gradients = held_bytes_;
  walk(&slice);
  slice.ns = ns_;
  return slice;
}

std::vector<HeldLevels> ReplayModel::held(const KeptSet& kept) {
  std::vector<HeldLevels> levels(graph_.operators.size());
  levels_ = &levels;
  (void)slice(kept);
  levels_ = nullptr;
  return levels;
}

void ReplayModel::begin(const KeptSet& kept) {
  kept_ = &kept;
  ns_ = 0;
  waiting_.clear();
  waiting_bytes_ = 0;
  for (std::size_t i = 0; i < saves_.size(); ++i) {
    states_[i] = kept[at(saves_[i].storage)] ? SaveState::kept : SaveState::wanted;
    waits_in_[i] = kNowhere;
  }
}

// Walks backward, operator by operator and saved value by saved value.
void ReplayModel::walk(Slice* slice) {
  for (std::size_t i = graph_.operators.size(); i-- > 0;) {
    position_ = static_cast<Index>(i);
    const Span saves = saves_of_[i];
    if (slice != nullptr) {
      held_bytes_ = kept_alive();
      if (levels_ != nullptr) (*levels_)[i].asking_bytes = waiting_bytes_ + held_bytes_;
      work_ += graph_.storages.size() / 8;
      unpack(*slice);
    }
    for (std::size_t k = saves.first; k < saves.end; ++k) {
      if (states_[k] != SaveState::wanted) continue;
      fetch(k);
      if (slice != nullptr) run_again(*slice);
    }
    if (slice == nullptr) continue;
    if (levels_ != nullptr)
      (*levels_)[i].running_bytes = waiting_bytes_ + unpacked_bytes_ + held_bytes_;
    note(*slice, waiting_bytes_ + unpacked_bytes_, graph_.operators[i].backward_bytes);
    release(position_);
  }
}

void ReplayModel::fetch(std::size_t save) {
  std::ranges::fill(needed_, 0);
  found_.clear();
  const Span together = saves_of_[at(position_)];
  for (std::size_t k = together.first; k < together.end; ++k) ask(k);
  for (const std::size_t k : saves_in_[at(saves_[save].storage)]) ask(k);
  close_over_reads();
  take_what_is_on_the_way();
}

void ReplayModel::ask(std::size_t save) {
  if (states_[save] != SaveState::wanted) return;
  if (!saves_[save].by_value) return need(saves_[save].saver);
  depend_on(saves_[save].value);
  states_[save] = SaveState::found;
  found_.push_back(save);
}

void ReplayModel::need(Index op) {
  needed_[at(op) / 64] |= std::uint64_t{1} << (at(op) % 64);
}

bool ReplayModel::is_kept(const Value& value) const {
  return value.storage != kOutside && (*kept_)[at(value.storage)] &&
         first_saver_[at(value.storage)] <= position_;
}

void ReplayModel::depend_on(const Value& value) {
  if (is_kept(value)) return;
  for (std::size_t i = value.needs.first; i < value.needs.end; ++i) need(needs_[i]);
}

// One pass from the last operator to the first suffices, because operators read earlier results
// only.
void ReplayModel::close_over_reads() {
  for (std::size_t word = needed_.size(); word-- > 0;) {
    std::uint64_t rest = ~std::uint64_t{0};
    while ((needed_[word] & rest) != 0) {
      const int bit = 63 - std::countl_zero(needed_[word] & rest);
      rest = (std::uint64_t{1} << bit) - 1;
      const std::size_t op = word * 64 + static_cast<std::size_t>(bit);
      ++work_;
      ns_ += graph_.operators[op].ns;
      for (std::size_t r = reads_of_[op].first; r < reads_of_[op].end; ++r) depend_on(reads_[r]);
      for (std::size_t k = saves_of_[op].first; k < saves_of_[op].end; ++k) {
        if (saves_[k].by_value || states_[k] != SaveState::wanted) continue;
        states_[k] = SaveState::found;
        found_.push_back(k);
      }
    }
  }
}

void ReplayModel::take_what_is_on_the_way() {
  const std::size_t end = saves_of_[at(position_)].end;
  work_ += end / 8;
  for (std::size_t k = 0; k < end; ++k) {
    if (states_[k] != SaveState::wanted || !saves_[k].by_value) continue;
    if (!is_on_the_way(saves_[k].value)) continue;
    states_[k] = SaveState::found;
    found_.push_back(k);
  }
}

bool ReplayModel::is_on_the_way(const Value& value) const {
  if (is_kept(value)) return false;
  return std::all_of(needs_.begin() + value.needs.first, needs_.begin() + value.needs.end,
                     [this](Index op) { return is_needed(op); });
}

// Repeats the replay in forward order, to count how long its values live.
void ReplayModel::run_again(Slice& slice) {
  work_ += at(position_) + graph_.storages.size() / 8;
  plan_last_uses();
  std::vector<std::size_t> wait_of(graph_.storages.size(), kNowhere);
  for (const std::size_t k : found_) {
    const auto storage = at(saves_[k].storage);
    if (!is_needed(graph_.storages[storage].maker)) continue;  // lies in a kept storage
    if (wait_of[storage] == kNowhere) {
      wait_of[storage] = waiting_.size();
      waiting_.push_back({graph_.storages[storage].bytes, 0});
    }
    ++waiting_[wait_of[storage]].uses;
    waits_in_[k] = wait_of[storage];
  }
  std::int64_t alive = 0;
  std::int64_t whole = 0;  // bytes of masks
  unpacked_.assign(graph_.storages.size(), false);
  std::vector<std::vector<Index>> deaths(at(position_) + 1);
  for (std::size_t i = 0; i <= at(position_); ++i) {
    std::int64_t own = 0;
    if (is_needed(static_cast<Index>(i))) {
      own = graph_.operators[i].own_bytes;
      slice.operators.push_back(static_cast<Index>(i));
      whole += unpacked_by(static_cast<Index>(i));
      for (const Index s : makes_[i]) {
        alive += graph_.storages[at(s)].bytes;
        if (wait_of[at(s)] == kNowhere) deaths[at(death_of(s))].push_back(s);
      }
    }
    const std::int64_t now = waiting_bytes_ + unpacked_bytes_ + whole + alive;
    note(slice, now, graph_.operators[at(position_)].asking_bytes + own);
    for (const Index s : deaths[i]) alive -= graph_.storages[at(s)].bytes;
  }
  waiting_bytes_ += alive;
}

void ReplayModel::plan_last_uses() {
  std::ranges::fill(last_use_, -1);
  for (const std::size_t k : found_) {
    if (saves_[k].by_value) use_last(saves_[k].value, saves_[k].saver);
  }
  for (std::size_t i = 0; i <= at(position_); ++i) {
    const auto op = static_cast<Index>(i);
    if (!is_needed(op)) continue;
    last_use_[i] = std::max(last_use_[i], op);
    for (std::size_t r = reads_of_[i].first; r < reads_of_[i].end; ++r) use_last(reads_[r], op);
  }
}

void ReplayModel::use_last(const Value& value, Index user) {
  last_use_[at(value.from)] = std::max(last_use_[at(value.from)], user);
}

ReplayModel::Index ReplayModel::death_of(Index storage) const {
  Index last = 0;
  for (const Index op : objects_[at(storage)]) {
    if (is_needed(op)) last = std::max(last, last_use_[at(op)]);
  }
  return last;
}

// Records a moment with `now` bytes alive beside kept storages, and gradients.
void ReplayModel::note(Slice& slice, std::int64_t now, std::int64_t gradients) const {
  const std::int64_t held = now + held_bytes_;
  slice.bytes = std::max(slice.bytes, now);
  slice.bytes_with_held = std::max(slice.bytes_with_held, held);
  slice.bytes_with_gradients = std::max(slice.bytes_with_gradients, held + gradients);
}

// Releases the values of an operator whose backward has run.
void ReplayModel::release(Index op) {
  for (std::size_t k = saves_of_[at(op)].first; k < saves_of_[at(op)].end; ++k) {
    if (waits_in_[k] == kNowhere) continue;
    Waiting& waiting = waiting_[waits_in_[k]];
    if (--waiting.uses == 0) waiting_bytes_ -= waiting.bytes;
  }
}

// Autograd requests all values that the operator saved before it runs the operator's backward.
void ReplayModel::unpack(Slice& slice) {
  unpacked_bytes_ = 0;
  for (std::size_t k = saves_of_[at(position_)].first; k < saves_of_[at(position_)].end; ++k) {
    const GraphStorage& storage = graph_.storages[at(saves_[k].storage)];
    if (states_[k] == SaveState::kept && storage.packed_bytes > 0 && !storage.is_held)
      unpacked_bytes_ += storage.bytes;
  }
  if (unpacked_bytes_ == 0) return;
  note(slice, waiting_bytes_ + unpacked_bytes_, graph_.operators[at(position_)].asking_bytes);
}

// Returns the bytes of the masks that the operator is the first to read in a replay.
std::int64_t ReplayModel::unpacked_by(Index op) {
  std::int64_t sum = 0;
  for (std::size_t r = reads_of_[at(op)].first; r < reads_of_[at(op)].end; ++r) {
    if (!is_kept(reads_[r])) continue;
    const GraphStorage& storage = graph_.storages[at(reads_[r].storage)];
    if (storage.packed_bytes == 0 || storage.is_held || unpacked_[at(reads_[r].storage)]) continue;
    unpacked_[at(reads_[r].storage)] = true;
    sum += storage.bytes;
  }
  return sum;
}

std::int64_t ReplayModel::kept_alive() const {
  std::int64_t sum = 0;
  for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
    if ((*kept_)[s] && !graph_.storages[s].is_held && first_holder_[s] <= position_)
      sum += kept_bytes(graph_.storages[s]);
  }
  return sum;
}

StoragePoint point_of(const OperatorGraph& graph, ReplayModel& model, const KeptSet& kept) {
  const Slice slice = model.slice(kept);
  return {kept, held_bytes(graph, kept), slice.ns, slice.bytes, slice.bytes_with_gradients};
}

Slice slice(const OperatorGraph& graph, const KeptSet& kept) {
  return ReplayModel(graph).slice(kept);
}

void learn_backward(OperatorGraph& graph, const KeptSet& kept,
                    std::span<const BackwardLevels> measured) {
  for (GraphOperator& it : graph.operators) it.asking_bytes = it.backward_bytes = 0;
  if (measured.empty()) return;
  const std::vector<HeldLevels> held = ReplayModel(graph).held(kept);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::vector<BackwardLevels> beside(measured.begin(), measured.end());
  for (BackwardLevels& it : beside) {
    const HeldLevels& there = held[static_cast<std::size_t>(it.op)];
    it.asking_bytes -= there.asking_bytes;
    it.most_bytes -= there.running_bytes;
    least = std::min({least, it.asking_bytes, it.most_bytes});
  }
  for (const BackwardLevels& it : beside) {
    GraphOperator& op = graph.operators[static_cast<std::size_t>(it.op)];
    op.asking_bytes = it.asking_bytes - least;
    op.backward_bytes = it.most_bytes - least;
  }
}

}  // namespace cox::planner
