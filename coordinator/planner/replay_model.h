// ReplayModel walks backward through an operator graph under a set of kept storages, as autograd
// and the tape do, and counts what runs again. Built once for a graph, then asked for many sets: a
// few microseconds each for a block of fifty operators. Internal to the planner; operator_graph.h
// is its interface. One thread at a time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::planner {

// HeldLevels are the bytes of what is kept and was made again when backward comes to an operator,
// and when it has all that the operator saved.
struct HeldLevels {
  std::int64_t asking_bytes = 0;
  std::int64_t running_bytes = 0;
};

class ReplayModel {
 public:
  // REQUIRES: a valid graph that outlives this.
  explicit ReplayModel(const OperatorGraph& graph);

  // Returns the time alone, which is quicker. REQUIRES: an entry per storage, for both.
  std::int64_t nanoseconds(const KeptSet& kept);
  Slice slice(const KeptSet& kept);
  // Returns one for each operator.
  std::vector<HeldLevels> held(const KeptSet& kept);
  // Returns how many operators were looked at so far.
  std::size_t work() const { return work_; }

 private:
  using Index = std::int32_t;
  enum class SaveState : std::uint8_t { kept, wanted, found };
  struct Span {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };
  // A value with the operators that it needs where it is not kept.
  struct Value {
    Index storage = kOutside;  // where a kept one serves it; else kOutside
    Index from = 0;
    Index source = kOutside;  // the storage itself
    Span needs;
  };
  struct Save {
    Index saver = 0;
    Index storage = 0;
    bool by_value = false;
    Value value;
  };

  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }
  Value value_of(const ValueRead& read);
  void add_operator(Index index);
  void add_first_savers();
  void add_objects();

  void begin(const KeptSet& kept);
  void walk(Slice* slice);
  void fetch(std::size_t save);
  void ask(std::size_t save);
  void need(Index op);
  void depend_on(const Value& value);
  bool is_kept(const Value& value) const;
  void close_over_reads();
  void take_what_is_on_the_way();
  bool is_on_the_way(const Value& value) const;
  bool is_needed(Index op) const { return needed_[at(op) / 64] >> (at(op) % 64) & 1; }

  // Of bytes.
  void run_again(Slice& slice);
  void plan_last_uses();
  void use_last(const Value& value, Index user);
  Index death_of(Index storage) const;
  void note(Slice& slice, std::int64_t now, std::int64_t gradients) const;
  void release(Index op);
  void unpack(Slice& slice);
  std::int64_t unpacked_by(Index op);
  std::int64_t kept_alive() const;

  const OperatorGraph& graph_;
  // Of the graph.
  std::vector<std::int32_t> write_counts_;
  std::vector<std::vector<Index>> writers_;  // so far, while the model is built
  std::vector<Index> needs_;
  std::vector<Value> reads_;
  std::vector<Span> reads_of_;  // each operator
  std::vector<Save> saves_;
  std::vector<Span> saves_of_;                      // each operator
  std::vector<std::vector<std::size_t>> saves_in_;  // each storage
  std::vector<Index> first_saver_;                  // of a last state of each storage
  std::vector<Index> first_holder_;                 // the first that saved anything of it
  std::vector<std::vector<Index>> makes_;           // storages of each operator
  std::vector<std::vector<Index>> objects_;         // operators whose results lie in a storage

  // Of one set.
  const KeptSet* kept_ = nullptr;
  std::vector<HeldLevels>* levels_ = nullptr;  // null: nobody asks
  std::int64_t held_bytes_ = 0;  // of kept storages that backward at position_ still needs
  std::vector<SaveState> states_;
  std::int64_t ns_ = 0;
  std::size_t work_ = 0;

  // Of one replay.
  Index position_ = 0;  // backward is at this operator
  std::vector<std::uint64_t> needed_;
  std::vector<std::size_t> found_;  // saves that it found

  // Of bytes: what earlier replays found and backward has not yet used.
  struct Waiting {
    std::int64_t bytes = 0;
    std::size_t uses = 0;
  };
  std::vector<Waiting> waiting_;
  std::vector<std::size_t> waits_in_;  // for each save
  std::int64_t waiting_bytes_ = 0;
  std::int64_t unpacked_bytes_ = 0;  // of the operator that backward is at
  std::vector<bool> unpacked_;       // storages, by the replay
  std::vector<Index> last_use_;
};

// Returns the set with what it costs by the model, which is of this graph.
StoragePoint point_of(const OperatorGraph& graph, ReplayModel& model, const KeptSet& kept);

}  // namespace cox::planner
