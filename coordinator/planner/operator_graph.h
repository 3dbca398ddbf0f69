// OperatorGraph: the operators that one region of a forward pass ran (for example one visit of a
// block), their storages, and the values that autograd saved for backward. The graph gives the cost
// of any set of kept storages, and the trade between held bytes and the time of replay:
//
//   tape (sdk/src/stream) -> OperatorGraph -> storage_front() -> levels() -> memory planner
//                                          -> least_alive() ->
//
// Guide: docs/operator-graphs.md. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::planner {

inline constexpr std::int32_t kOutside = -1;  // in place of a storage of the region

// ValueRead is a value of the region that an operator reads. Values from outside the region
// (parameters, inputs) are always available and not listed.
struct ValueRead {
  std::int32_t from = 0;  // the operator whose result is read: the storage's maker, or a view
  std::int32_t storage = kOutside;  // kOutside: a view of memory outside the region
  std::int32_t writes = 0;          // number of writes to the storage before the read
  bool can_be_kept = true;          // a kept tensor of the storage can serve the read
  friend bool operator==(const ValueRead&, const ValueRead&) = default;
};

// SavedRead is a value that autograd saved and that need not be kept.
struct SavedRead {
  std::int32_t storage = 0;
  bool is_last_state = true;  // last state of the storage; else a kept storage cannot serve reads
  // True if backward fetches it as `value`, without running the operator that saved it.
  bool by_value = false;
  ValueRead value = {};
  friend bool operator==(const SavedRead&, const SavedRead&) = default;
};

struct GraphOperator {
  std::string name;
  std::int64_t ns = 0;  // time of one run
  std::vector<ValueRead> reads;
  std::vector<std::int32_t> writes;  // earlier storages that it writes to; two writes count twice
  std::vector<SavedRead> saves;      // in autograd's order
  std::int64_t own_bytes = 0;        // temporary bytes of a run, beside the results
  // Bytes of backward: gradients and temporaries, without kept storages and replays. 0 for an
  // operator that saved nothing; the bytes then count with the next operator, in forward order,
  // that did.
  std::int64_t asking_bytes = 0;    // alive when backward requests the operator's saved values
  std::int64_t backward_bytes = 0;  // most alive from then until the next operator's request
  friend bool operator==(const GraphOperator&, const GraphOperator&) = default;
};

struct GraphStorage {
  std::int64_t bytes = 0;
  std::int32_t maker = 0;  // the operator that made the storage
  bool is_held = false;    // kept under any plan: by a custom Function, or by the next reader
  std::int64_t packed_bytes = 0;  // size of a mask while kept; else 0
  friend bool operator==(const GraphStorage&, const GraphStorage&) = default;
};

struct OperatorGraph {
  std::vector<GraphOperator> operators;  // in the order of execution
  std::vector<GraphStorage> storages;
  friend bool operator==(const OperatorGraph&, const OperatorGraph&) = default;
};

inline constexpr std::int64_t kMaxGraphValue = std::int64_t{1} << 46;  // for bytes and nanoseconds
inline constexpr std::size_t kMaxGraphOperators = 1 << 16;

// Returns invalid_argument with the operator or storage that is out of range, or that reads a value
// not made before.
Status validate(const OperatorGraph& graph);

// KeptSet says of each storage whether it is kept. Storages without saved values are ignored.
using KeptSet = std::vector<bool>;

// Returns the candidates, ascending: storages with a value that autograd saved and that need not be
// kept.
std::vector<std::int32_t> candidates(const OperatorGraph& graph);

// Returns the bytes of a storage while kept.
std::int64_t kept_bytes(const GraphStorage& storage);
// Returns the bytes of the kept candidates. Storages that are held anyway do not count.
std::int64_t held_bytes(const OperatorGraph& graph, const KeptSet& kept);
// Returns the bytes of all candidates as held by plain autograd, with whole masks.
std::int64_t saved_bytes(const OperatorGraph& graph);

// BackwardLevels are the bytes alive in a backward pass around one operator that saved a value.
// Only the differences between levels count.
struct BackwardLevels {
  std::int32_t op = 0;
  std::int64_t asking_bytes = 0;  // as in GraphOperator, with all bytes alive
  std::int64_t most_bytes = 0;    // as backward_bytes, with all bytes alive
};
// Computes asking_bytes and backward_bytes of all operators from the levels of a pass with these
// storages kept. REQUIRES: a valid graph; kept.size() == graph.storages.size(); every level's
// operator belongs to the graph.
void learn_backward(OperatorGraph& graph, const KeptSet& kept,
                    std::span<const BackwardLevels> measured);

// Slice is the replay in backward under a set of kept storages (replay_model.cc).
//
// The rules are those of the tape. A value is a storage and the number of writes to the storage so
// far. Backward visits operators from the last to the first. A request for a dropped value starts a
// replay:
//
// - The replay makes all dropped values that the same operator saved, or that lie in the same
//   storage.
// - Operators on which the values depend run again, in order, from kept storages.
// - A kept storage serves reads of its last state only, and only until backward has passed the
//   first operator that saved the storage.
// - A replay also takes dropped values that it passes.
// - A mask is kept in fewer bits, and unpacked for each operator that saved the mask and once for
//   each replay that reads it.
struct Slice {
  std::vector<std::int32_t> operators;  // in order of execution, one entry for each run
  std::int64_t ns = 0;
  // Most bytes of a replay alive at once: results, found values, unpacked masks.
  std::int64_t bytes = 0;
  std::int64_t bytes_with_held = 0;  // the same with kept storages
  // The same with all temporaries and gradients (GraphOperator) too.
  std::int64_t bytes_with_gradients = 0;
};
// Returns the replay. REQUIRES: a valid graph; kept.size() == graph.storages.size().
Slice slice(const OperatorGraph& graph, const KeptSet& kept);

struct StoragePoint {
  KeptSet kept;
  std::int64_t held_bytes = 0;
  std::int64_t replay_ns = 0;
  std::int64_t replay_bytes = 0;  // Slice::bytes
  std::int64_t alive_bytes = 0;   // Slice::bytes_with_gradients
};

// Limits count work, not seconds, so equal graphs give equal fronts everywhere.
struct StorageFrontLimits {
  std::size_t most_subsets = std::size_t{1} << 16;  // >= 2
  std::size_t most_work = 40'000'000;               // operators visited in all
};

struct StorageFront {
  std::vector<StoragePoint> points;  // ascending held bytes, strictly descending time; never empty
  // True if no set of kept storages beats a point. Otherwise small storages were grouped, and
  // points were improved storage by storage until nothing helped or the limit was reached.
  bool is_exact = true;
  std::size_t subsets = 0;  // number of sets tried
  std::size_t work = 0;     // operators visited
};
// Returns the front. The first point has the least possible bytes. The last point keeps all
// storages that take time to make again. REQUIRES: a valid graph.
StorageFront storage_front(const OperatorGraph& graph, const StorageFrontLimits& limits = {});

// Returns the indices of at most `most` points strictly between the first and the last, ascending.
// The selection loses the least time, summed over all budgets between the two.
std::vector<std::size_t> levels(const StorageFront& front, std::size_t most);

// Returns the most bytes alive while backward runs the second of two equal regions: the kept bytes
// of the first region are added.
std::int64_t chain_bytes(const StoragePoint& point);
// Returns the set of kept storages with the least chain_bytes(). A local search starts from none
// and from all kept, and changes one or two storages while that helps. A better set with more
// differences may be missed. Counts bytes alone, so graphs that differ only in times have equal
// answers. REQUIRES: a valid graph.
StoragePoint least_alive(const OperatorGraph& graph,
                         const StorageFrontLimits& limits = {1 << 14, 8'000'000});

}  // namespace cox::planner
