#include "tests/planner/tape_simulator.h"

#include <algorithm>

namespace cox::test {
namespace {

using planner::GraphOperator;
using planner::KeptSet;
using planner::OperatorGraph;
using planner::SavedRead;
using planner::ValueRead;
using Bits = std::uint64_t;

std::size_t at(std::int32_t index) {
  return static_cast<std::size_t>(index);
}

Bits mix(Bits a, Bits b) {
  a ^= b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2);
  return a * 0xbf58476d1ce4e5b9ULL + 1;
}

struct SaveId {
  std::int32_t saver = 0;
  std::size_t position = 0;
  friend auto operator<=>(const SaveId&, const SaveId&) = default;
};

// The memory of one replay: remade bits and the number of writes to them.
struct Memory {
  Bits bits = 0;
  std::int32_t writes = 0;
};

struct Found {
  Bits bits = 0;
  std::int32_t storage = planner::kOutside;
  int replay = -1;  // the replay that owns the memory; -1: kept
};

class Simulator {
 public:
  Simulator(const OperatorGraph& graph, const KeptSet& kept) : graph_(graph), kept_(kept) {}

  SimulatedStep run() {
    forward();
    step_.levels.resize(graph_.operators.size());
    now_ = static_cast<std::int32_t>(graph_.operators.size()) - 1;
    step_.bytes_with_held = step_.bytes_with_gradients = alive_bytes({});
    for (std::size_t i = graph_.operators.size(); i-- > 0;) backward(static_cast<std::int32_t>(i));
    return std::move(step_);
  }

 private:
  void forward() {
    history_.resize(graph_.storages.size());
    writers_.resize(graph_.storages.size());
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      const auto op = static_cast<std::int32_t>(i);
      Bits result = i + 1;
      for (const ValueRead& read : graph_.operators[i].reads) {
        result = mix(result, read.storage == planner::kOutside
                                 ? results_[at(read.from)]
                                 : history_[at(read.storage)][at(read.writes)]);
      }
      results_.push_back(result);
      for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
        if (graph_.storages[s].maker == op) history_[s].push_back(mix(result, s));
      }
      for (const std::int32_t s : graph_.operators[i].writes) {
        history_[at(s)].push_back(mix(history_[at(s)].back(), result));
        writers_[at(s)].push_back(op);
      }
    }
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      for (std::size_t k = 0; k < graph_.operators[i].saves.size(); ++k) {
        const SavedRead& save = graph_.operators[i].saves[k];
        if (!kept_[at(save.storage)]) wanted_.insert({static_cast<std::int32_t>(i), k});
      }
    }
  }

  const SavedRead& save_of(SaveId id) const {
    return graph_.operators[at(id.saver)].saves[id.position];
  }

  void backward(std::int32_t op) {
    now_ = op;
    unpacked_bytes_ = 0;
    step_.levels[at(op)].asking_bytes = alive_bytes({});
    unpack();
    for (std::size_t k = 0; k < graph_.operators[at(op)].saves.size(); ++k) {
      const SaveId id{op, k};
      if (wanted_.contains(id) && !found_.contains(id)) replay(id);
      if (!wanted_.contains(id)) continue;
      const SavedRead& save = save_of(id);
      const Bits want = save.by_value ? history_[at(save.value.storage)][at(save.value.writes)]
                                      : mix(results_[at(op)], k);
      if (!found_.contains(id) || found_[id].bits != want) step_.error = "other bits were found";
    }
    step_.levels[at(op)].running_bytes = alive_bytes({});
    note_alive({}, graph_.operators[at(op)].backward_bytes);
    std::erase_if(found_, [&](const auto& item) { return item.first.saver == op; });
    std::erase_if(wanted_, [&](const SaveId& id) { return id.saver == op; });
  }

  // Autograd still holds a kept tensor for an operator whose backward has not ended.
  bool serves(const ValueRead& read) const {
    if (read.storage == planner::kOutside || !read.can_be_kept || !kept_[at(read.storage)])
      return false;
    if (at(read.writes) != writers_[at(read.storage)].size()) return false;
    for (std::int32_t op = 0; op <= now_; ++op) {
      for (const SavedRead& save : graph_.operators[at(op)].saves) {
        if (save.storage == read.storage && save.is_last_state) return true;
      }
    }
    return false;
  }

  void require(const ValueRead& read, std::set<std::int32_t>& needed) const {
    if (serves(read)) return;
    require(read.from, needed);
    for (std::int32_t w = 0; w < read.writes; ++w)
      require(writers_[at(read.storage)][at(w)], needed);
  }
  void require(std::int32_t op, std::set<std::int32_t>& needed) const {
    if (!needed.insert(op).second) return;
    for (const ValueRead& read : graph_.operators[at(op)].reads) require(read, needed);
  }

  void replay(SaveId first) {
    ++replays_;
    std::set<std::int32_t> needed;
    std::vector<SaveId> takes;
    const std::vector<SaveId> open = still_open();
    for (const SaveId id : open) {
      const SavedRead& save = save_of(id);
      if (id.saver != first.saver && save.storage != save_of(first).storage) continue;
      if (!save.by_value) require(id.saver, needed);
      if (!save.by_value) continue;
      require(save.value, needed);
      takes.push_back(id);
    }
    for (const SaveId id : open) {
      const SavedRead& save = save_of(id);
      if (!save.by_value || std::ranges::find(takes, id) != takes.end()) continue;
      if (is_on_the_way(save.value, needed)) takes.push_back(id);
    }
    run_again(needed, takes, open);
  }

  std::vector<SaveId> still_open() const {
    std::vector<SaveId> open;
    for (const SaveId id : wanted_) {
      if (!found_.contains(id)) open.push_back(id);
    }
    return open;
  }

  bool is_on_the_way(const ValueRead& value, const std::set<std::int32_t>& needed) const {
    if (serves(value) || !needed.contains(value.from)) return false;
    for (std::int32_t w = 0; w < value.writes; ++w) {
      if (!needed.contains(writers_[at(value.storage)][at(w)])) return false;
    }
    return true;
  }

  void run_again(const std::set<std::int32_t>& needed, const std::vector<SaveId>& takes,
                 const std::vector<SaveId>& open) {
    std::map<std::int32_t, Memory> memory;
    const std::map<std::int32_t, std::int32_t> last = last_uses(needed, takes);
    in_kept_.clear();
    for (std::int32_t op = 0; op <= now_; ++op) {
      for (const SaveId id : takes) {
        if (id.saver == op) take(id, memory);
      }
      if (needed.contains(op)) {
        run_operator(op, memory);
        for (const SaveId id : open) {
          if (id.saver != op || save_of(id).by_value) continue;
          found_[id] = {mix(results_[at(op)], id.position), save_of(id).storage,
                        memory.contains(save_of(id).storage) ? replays_ : -1};
        }
      }
      note_bytes(memory, last, needed, op);
      forget_unused(memory, last, needed, op);
    }
    whole_.clear();
  }

  void take(SaveId id, const std::map<std::int32_t, Memory>& memory) {
    const ValueRead& value = save_of(id).value;
    const bool is_served = serves(value);
    found_[id] = {read(value, memory), value.storage, is_served ? -1 : replays_};
  }

  Bits read(const ValueRead& value, const std::map<std::int32_t, Memory>& memory) {
    if (value.storage == planner::kOutside) return results_[at(value.from)];
    if (serves(value) || in_kept_.contains({value.from, value.storage}))
      return history_[at(value.storage)].back();
    const auto found = memory.find(value.storage);
    if (found == memory.end() || found->second.writes != value.writes) {
      step_.error = "a replay reads what is not there";
      return 0;
    }
    return found->second.bits;
  }

  void run_operator(std::int32_t op, std::map<std::int32_t, Memory>& memory) {
    step_.replayed.push_back(op);
    step_.ns += graph_.operators[at(op)].ns;
    Bits result = static_cast<Bits>(op) + 1;
    for (const ValueRead& value : graph_.operators[at(op)].reads)
      result = mix(result, read(value, memory));
    for (const ValueRead& value : graph_.operators[at(op)].reads) {
      if (serves(value) && is_packed(value.storage)) whole_.insert(value.storage);
      if (serves(value) || in_kept_.contains({value.from, value.storage}))
        in_kept_.insert({op, value.storage});
    }
    for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
      if (graph_.storages[s].maker == op)
        memory[static_cast<std::int32_t>(s)] = {mix(result, s), 0};
    }
    for (const std::int32_t s : graph_.operators[at(op)].writes) {
      if (!memory.contains(s)) {
        step_.error = "a replay writes to what is not its own";
        continue;
      }
      memory[s].bits = mix(memory[s].bits, result);
      ++memory[s].writes;
    }
  }

  // A result lives until the last operator that reads it has run.
  std::map<std::int32_t, std::int32_t> last_uses(const std::set<std::int32_t>& needed,
                                                 const std::vector<SaveId>& takes) const {
    std::map<std::int32_t, std::int32_t> last;
    const auto use = [&](std::int32_t op, std::int32_t user) {
      last[op] = std::max(last[op], user);
    };
    for (const SaveId id : takes) use(save_of(id).value.from, id.saver);
    for (const std::int32_t op : needed) {
      use(op, op);
      for (const ValueRead& value : graph_.operators[at(op)].reads) use(value.from, op);
    }
    return last;
  }

  // Returns whether a live result is in the storage.
  bool is_used(std::int32_t storage, const std::map<std::int32_t, std::int32_t>& last,
               const std::set<std::int32_t>& needed, std::int32_t after) const {
    const auto is_there = [&](std::int32_t op) {
      return needed.contains(op) && last.at(op) > after;
    };
    if (is_there(graph_.storages[at(storage)].maker)) return true;
    for (const GraphOperator& it : graph_.operators) {
      for (const ValueRead& value : it.reads) {
        if (value.storage == storage && is_there(value.from)) return true;
      }
      for (const SavedRead& save : it.saves) {
        if (save.by_value && save.value.storage == storage && is_there(save.value.from))
          return true;
      }
    }
    return false;
  }

  bool is_packed(std::int32_t storage) const {
    const planner::GraphStorage& it = graph_.storages[at(storage)];
    return kept_[at(storage)] && !it.is_held && it.packed_bytes > 0;
  }

  // Unpacks masks that the operator saved, one for each saved value.
  void unpack() {
    for (const SavedRead& save : graph_.operators[at(now_)].saves) {
      if (is_packed(save.storage)) unpacked_bytes_ += graph_.storages[at(save.storage)].bytes;
    }
    if (unpacked_bytes_ > 0) note_alive({}, graph_.operators[at(now_)].asking_bytes);
  }

  void note_alive(const std::set<std::int32_t>& now, std::int64_t gradients) {
    step_.bytes = std::max(step_.bytes, remade_bytes(now));
    step_.bytes_with_held = std::max(step_.bytes_with_held, alive_bytes(now));
    step_.bytes_with_gradients = std::max(step_.bytes_with_gradients, alive_bytes(now) + gradients);
  }

  // Returns the bytes of kept values that autograd still holds, and of values that replays have
  // now.
  std::int64_t alive_bytes(const std::set<std::int32_t>& now) const {
    std::int64_t sum = remade_bytes(now);
    for (std::size_t s = 0; s < graph_.storages.size(); ++s) {
      bool is_to_come = false;
      for (std::int32_t op = 0; op <= now_; ++op) {
        for (const SavedRead& save : graph_.operators[at(op)].saves)
          is_to_come |= at(save.storage) == s;
      }
      const planner::GraphStorage& it = graph_.storages[s];
      if (!kept_[s] || it.is_held || !is_to_come) continue;
      sum += it.packed_bytes > 0 ? it.packed_bytes : it.bytes;
    }
    return sum;
  }
  std::int64_t remade_bytes(const std::set<std::int32_t>& now) const {
    std::set<std::pair<int, std::int32_t>> alive;
    for (const std::int32_t s : now) alive.insert({replays_, s});
    for (const auto& [id, found] : found_) {
      if (found.replay >= 0) alive.insert({found.replay, found.storage});
    }
    std::int64_t sum = unpacked_bytes_;
    for (const auto& [replay, s] : alive) sum += graph_.storages[at(s)].bytes;
    for (const std::int32_t s : whole_) sum += graph_.storages[at(s)].bytes;
    return sum;
  }

  void note_bytes(const std::map<std::int32_t, Memory>& memory,
                  const std::map<std::int32_t, std::int32_t>& last,
                  const std::set<std::int32_t>& needed, std::int32_t op) {
    std::set<std::int32_t> now;
    for (const auto& [s, one] : memory) {
      if (is_used(s, last, needed, op - 1)) now.insert(s);
    }
    const std::int64_t own = needed.contains(op) ? graph_.operators[at(op)].own_bytes : 0;
    note_alive(now, graph_.operators[at(now_)].asking_bytes + own);
  }

  void forget_unused(std::map<std::int32_t, Memory>& memory,
                     const std::map<std::int32_t, std::int32_t>& last,
                     const std::set<std::int32_t>& needed, std::int32_t op) const {
    std::erase_if(memory, [&](const auto& item) { return !is_used(item.first, last, needed, op); });
  }

  const OperatorGraph& graph_;
  const KeptSet& kept_;
  SimulatedStep step_;
  std::vector<std::vector<Bits>> history_;  // [storage], after each write
  std::vector<std::vector<std::int32_t>> writers_;
  std::vector<Bits> results_;
  std::set<SaveId> wanted_;
  std::map<SaveId, Found> found_;
  std::set<std::pair<std::int32_t, std::int32_t>> in_kept_;  // results that view kept values
  std::set<std::int32_t> whole_;                             // masks read in this replay
  std::int64_t unpacked_bytes_ = 0;  // masks saved by the operator of the current backward
  std::int32_t now_ = 0;             // operator of the current backward
  int replays_ = 0;
};

// Draws a graph operator by operator.
class Draw {
 public:
  Draw(std::mt19937_64& random, std::size_t operators) : random_(random), count_(operators) {}

  OperatorGraph run() {
    for (std::size_t i = 0; i < count_; ++i) add();
    const auto is_last = [&](SavedRead& save, std::int32_t state) {
      save.is_last_state = state == writes_[at(save.storage)];
    };
    std::size_t k = 0;
    for (GraphOperator& it : graph_.operators) {
      for (SavedRead& save : it.saves) is_last(save, saved_states_[k++]);
    }
    return std::move(graph_);
  }

 private:
  struct Object {
    std::int32_t op = 0;
    std::int32_t storage = planner::kOutside;
  };

  std::int64_t draw(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool is_one_in(std::int64_t n) { return draw(1, n) == 1; }

  ValueRead read_of(const Object& object) {
    const bool is_inside = object.storage != planner::kOutside;
    return {object.op, object.storage, is_inside ? writes_[at(object.storage)] : 0, !is_one_in(12)};
  }

  void add() {
    const auto op = static_cast<std::int32_t>(graph_.operators.size());
    GraphOperator it{"op" + std::to_string(op), draw(0, 9), {}, {}, {}, draw(0, 9), draw(0, 30)};
    it.backward_bytes = it.asking_bytes + draw(0, 30);
    const std::int64_t kind = draw(0, 9);
    const std::size_t reads = objects_.empty() ? 0 : static_cast<std::size_t>(draw(0, 2));
    std::vector<Object> used;
    for (std::size_t r = 0; r < reads; ++r)
      used.push_back(objects_[at(static_cast<std::int32_t>(
          draw(std::max<std::int64_t>(0, std::int64_t(objects_.size()) - 5),
               std::int64_t(objects_.size()) - 1)))]);
    for (const Object& object : used) it.reads.push_back(read_of(object));
    if (kind < 2 && !used.empty() && used[0].storage != planner::kOutside) {
      write(it, op, used);
    } else if (kind < 4 && !used.empty()) {
      save_inputs(it, used, 0);
      objects_.push_back({op, used[0].storage});  // a view
    } else if (kind == 4 && used.empty()) {
      objects_.push_back({op, planner::kOutside});
    } else {
      save_inputs(it, used, 0);
      make(it, op);
    }
    graph_.operators.push_back(std::move(it));
  }

  void write(GraphOperator& it, std::int32_t op, const std::vector<Object>& used) {
    save_inputs(it, used, 1);
    for (int w = is_one_in(4) ? 2 : 1; w > 0; --w) {
      it.writes.push_back(used[0].storage);
      ++writes_[at(used[0].storage)];
    }
    if (is_one_in(3)) save(it, {used[0].storage, true, false, {}}, writes_[at(used[0].storage)]);
    objects_.push_back({op, used[0].storage});
  }

  void save_inputs(GraphOperator& it, const std::vector<Object>& used, std::size_t first) {
    for (std::size_t i = first; i < used.size(); ++i) {
      if (used[i].storage == planner::kOutside || !is_one_in(2)) continue;
      const bool by_value = !is_one_in(8);
      save(it, {used[i].storage, true, by_value, by_value ? it.reads[i] : ValueRead{}},
           writes_[at(used[i].storage)]);
    }
  }

  void make(GraphOperator& it, std::int32_t op) {
    for (int made = is_one_in(5) ? 2 : 1; made > 0; --made) {
      const auto storage = static_cast<std::int32_t>(graph_.storages.size());
      const std::int64_t bytes = draw(1, 20);
      const bool is_held = is_one_in(15);
      graph_.storages.push_back({bytes, op, is_held, is_one_in(4) ? draw(1, bytes) : 0});
      writes_.push_back(0);
      if (is_one_in(4)) save(it, {storage, true, false, {}}, 0);
      if (!is_one_in(8)) objects_.push_back({op, storage});
    }
  }

  void save(GraphOperator& it, SavedRead read, std::int32_t state) {
    it.saves.push_back(read);
    saved_states_.push_back(state);
  }

  std::mt19937_64& random_;
  const std::size_t count_;
  OperatorGraph graph_;
  std::vector<std::int32_t> writes_;        // to each storage so far
  std::vector<std::int32_t> saved_states_;  // [save]
  std::vector<Object> objects_;
};

}  // namespace

SimulatedStep simulate(const OperatorGraph& graph, const KeptSet& kept) {
  return Simulator(graph, kept).run();
}

OperatorGraph random_graph(std::mt19937_64& random, std::size_t operators) {
  return Draw(random, operators).run();
}

}  // namespace cox::test
