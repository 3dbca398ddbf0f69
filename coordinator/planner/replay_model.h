// ReplayModel walks backward through an operator graph under a set of kept storages, like autograd
// and the tape, and counts the operators that run again. Built once for a graph and used for many
// sets: some microseconds each for a block of fifty operators. Internal to the planner;
// operator_graph.h is its interface. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::planner {

// HeldLevels are the bytes of kept storages and replayed values when backward reaches an operator,
// and when it has all values that the operator saved.
struct HeldLevels {
  std::int64_t asking_bytes = 0;
  std::int64_t running_bytes = 0;
};

class ReplayModel {
 public:
  // REQUIRES: a valid graph that outlives the model.
  explicit ReplayModel(const OperatorGraph& graph);

  // Returns the time alone, which is faster than slice(). REQUIRES: an entry per storage, in both.
  std::int64_t nanoseconds(const KeptSet& kept);
  Slice slice(const KeptSet& kept);
  // Returns one level per operator.
  std::vector<HeldLevels> held(const KeptSet& kept);
  // Returns the number of operators visited so far.
  std::size_t work() const { return work_; }

 private:
  using Index = std::int32_t;
  enum class SaveState : std::uint8_t { kept, wanted, found };
  struct Span {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };
  // Value is a value and the operators that it needs if not kept.
  struct Value {
    Index storage = kOutside;  // the storage if a kept one serves the value; else kOutside
    Index from = 0;
    Index source = kOutside;  // the value's storage
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

  // Bytes of a replay.
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
  // Built from the graph.
  std::vector<std::int32_t> write_counts_;
  std::vector<std::vector<Index>> writers_;  // so far, while the model is built
  std::vector<Index> needs_;
  std::vector<Value> reads_;
  std::vector<Span> reads_of_;  // per operator
  std::vector<Save> saves_;
  std::vector<Span> saves_of_;                      // per operator
  std::vector<std::vector<std::size_t>> saves_in_;  // per storage
  std::vector<Index> first_saver_;                  // per storage: first to save its last state
  std::vector<Index> first_holder_;                 // per storage: first to save any value
  std::vector<std::vector<Index>> makes_;           // storages made by each operator
  std::vector<std::vector<Index>> objects_;         // operators whose results lie in each storage

  // State of one set.
  const KeptSet* kept_ = nullptr;
  std::vector<HeldLevels>* levels_ = nullptr;  // null: not requested
  std::int64_t held_bytes_ = 0;  // kept storages that backward at position_ still needs
  std::vector<SaveState> states_;
  std::int64_t ns_ = 0;
  std::size_t work_ = 0;

  // State of one replay.
  Index position_ = 0;  // the operator that backward is at
  std::vector<std::uint64_t> needed_;
  std::vector<std::size_t> found_;  // saves made by the replay

  // Values that earlier replays made and backward has not used yet.
  struct Waiting {
    std::int64_t bytes = 0;
    std::size_t uses = 0;
  };
  std::vector<Waiting> waiting_;
  std::vector<std::size_t> waits_in_;  // per save
  std::int64_t waiting_bytes_ = 0;
  std::int64_t unpacked_bytes_ = 0;  // for the operator that backward is at
  std::vector<bool> unpacked_;       // per storage, by the replay
  std::vector<Index> last_use_;
};

// Returns the set with its cost by the model. REQUIRES: the model was built from the graph.
StoragePoint point_of(const OperatorGraph& graph, ReplayModel& model, const KeptSet& kept);

}  // namespace cox::planner
