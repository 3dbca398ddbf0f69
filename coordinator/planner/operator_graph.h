// OperatorGraph: the operators that one region of a forward pass ran (a visit of a block, say), the
// storages that they made, and what autograd saved of those for backward. From it follow what a set
// of kept storages costs, and the whole trade between held bytes and the time of running operators
// again:
//
//   tape (sdk/src/stream) -> OperatorGraph -> storage_front() -> levels() -> memory planner
//                                          -> least_alive() ->
//
// The rules are those of the tape. A value is a storage and the number of writes to it so far.
// Backward visits the operators from the last to the first. Where a saved value that was dropped is
// asked for, all values that the same operator saved, or that lie in the same storage, are made
// together: by those operators that they depend on, in order, from what is kept. A kept storage
// serves reads of its last state only, and only until backward is past the first operator that
// saved it. Values that a replay passes are taken along. A mask is kept in fewer bits; it is made
// whole for each operator that saved it, and once for each replay that reads it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::planner {

inline constexpr std::int32_t kOutside = -1;  // in place of a storage of the region

// A value of the region that an operator reads. What comes from outside of the region (parameters,
// inputs) is always there and is not listed.
struct ValueRead {
  std::int32_t from = 0;            // the operator whose result is read: the maker, or a view of it
  std::int32_t storage = kOutside;  // kOutside: a view of memory from outside
  std::int32_t writes = 0;          // to the storage before it is read
  bool can_be_kept = true;          // a kept tensor of the storage can stand for it
  friend bool operator==(const ValueRead&, const ValueRead&) = default;
};

// A value that autograd saved and that need not be kept.
struct SavedRead {
  std::int32_t storage = 0;
  bool is_last_state = true;  // of the storage; only then it serves reads while it is kept
  // Whether it is fetched as `value`, without running the operator that saved it.
  bool by_value = false;
  ValueRead value = {};
  friend bool operator==(const SavedRead&, const SavedRead&) = default;
};

struct GraphOperator {
  std::string name;
  std::int64_t ns = 0;  // of one run
  std::vector<ValueRead> reads;
  std::vector<std::int32_t> writes;  // storages made before that it writes to; twice counts twice
  std::vector<SavedRead> saves;      // in the order in which autograd saved them
  std::int64_t own_bytes = 0;        // it takes while it runs, beside its results
  // Of backward, beside what is kept and made again: gradients, and what it takes for itself. 0 for
  // an operator that saved nothing; such a one counts with the one behind it that did.
  std::int64_t asking_bytes = 0;    // alive when backward asks for what the operator saved
  std::int64_t backward_bytes = 0;  // most alive from then until it asks for what another one saved
  friend bool operator==(const GraphOperator&, const GraphOperator&) = default;
};

struct GraphStorage {
  std::int64_t bytes = 0;
  std::int32_t maker = 0;  // the operator that made it
  bool is_held = false;    // whatever the plan says: by a custom Function, by whoever reads it next
  std::int64_t packed_bytes = 0;  // of a mask: what it takes while it is kept; else 0
  friend bool operator==(const GraphStorage&, const GraphStorage&) = default;
};

struct OperatorGraph {
  std::vector<GraphOperator> operators;  // in the order in which they ran
  std::vector<GraphStorage> storages;
  friend bool operator==(const OperatorGraph&, const OperatorGraph&) = default;
};

inline constexpr std::int64_t kMaxGraphValue = std::int64_t{1} << 46;  // of bytes and nanoseconds
inline constexpr std::size_t kMaxGraphOperators = 1 << 16;

// Returns invalid_argument that names the operator or storage that is out of range, or that reads
// what is not there yet.
Status validate(const OperatorGraph& graph);

// One entry per storage: whether it is kept. Storages that hold nothing saved are ignored.
using KeptSet = std::vector<bool>;

// A storage is a candidate when autograd saved something of it that need not be kept. Ascending.
std::vector<std::int32_t> candidates(const OperatorGraph& graph);

// Returns the bytes that keeping a storage takes.
std::int64_t kept_bytes(const GraphStorage& storage);
// Returns the bytes of the candidates that are kept, without those that are held anyway.
std::int64_t held_bytes(const OperatorGraph& graph, const KeptSet& kept);
// Returns the bytes of all candidates as autograd alone holds them, masks too.
std::int64_t saved_bytes(const OperatorGraph& graph);

// BackwardLevels are the bytes that were alive in a backward pass about one operator that saved
// something. Only their differences count.
struct BackwardLevels {
  std::int32_t op = 0;
  std::int64_t asking_bytes = 0;  // as in GraphOperator, but with all that was alive
  std::int64_t most_bytes = 0;    // backward_bytes, the same way
};
// Learns asking_bytes and backward_bytes of all operators (replay_model.cc) from a pass with these
// storages kept. REQUIRES: a valid graph; kept.size() == graph.storages.size(); operators of the
// graph.
void learn_backward(OperatorGraph& graph, const KeptSet& kept,
                    std::span<const BackwardLevels> measured);

// Slice is what backward runs again under a set of kept storages (replay_model.cc).
struct Slice {
  std::vector<std::int32_t> operators;  // in the order in which they run; once for each run
  std::int64_t ns = 0;
  // Most alive at once of what was made again: results, found values, masks that were made whole.
  std::int64_t bytes = 0;
  std::int64_t bytes_with_held = 0;  // most alive at once of that and of what is kept
  // The same with all that operators and their backward take besides (GraphOperator).
  std::int64_t bytes_with_gradients = 0;
};
// REQUIRES: a valid graph; kept.size() == graph.storages.size().
Slice slice(const OperatorGraph& graph, const KeptSet& kept);

struct StoragePoint {
  KeptSet kept;
  std::int64_t held_bytes = 0;
  std::int64_t replay_ns = 0;
  std::int64_t replay_bytes = 0;  // Slice::bytes
  std::int64_t alive_bytes = 0;   // Slice::bytes_with_gradients
};

// Limits count work, not seconds: the same graph gives the same front everywhere.
struct StorageFrontLimits {
  std::size_t most_subsets = std::size_t{1} << 16;  // >= 2
  std::size_t most_work = 40'000'000;               // operators looked at, in all
};

struct StorageFront {
  std::vector<StoragePoint> points;  // ascending held bytes, strictly descending time; never empty
  // Whether no set of kept storages beats a point. Otherwise small storages were grouped, and
  // points were improved storage by storage until nothing helped or the limit was reached.
  bool is_exact = true;
  std::size_t subsets = 0;  // that were tried
  std::size_t work = 0;     // operators looked at
};
// REQUIRES: a valid graph. The first point has the least bytes that can be had, the last keeps what
// costs time to make again.
StorageFront storage_front(const OperatorGraph& graph, const StorageFrontLimits& limits = {});

// Returns the indices of at most `most` points strictly between the first and the last, ascending:
// those with which the least time is lost, summed over all budgets between the two.
std::vector<std::size_t> levels(const StorageFront& front, std::size_t most);

// Returns what is alive at most while backward runs a region behind one that is like it: what that
// one holds comes on top.
std::int64_t chain_bytes(const StoragePoint& point);
// Returns the set of kept storages with the least chain_bytes(). It is found from none and from all
// kept, by changes of one or two storages for as long as one helps, so a better set that differs in
// more may be missed; and by bytes alone, so graphs that differ in times have equal answers.
// REQUIRES: a valid graph.
StoragePoint least_alive(const OperatorGraph& graph,
                         const StorageFrontLimits& limits = {1 << 14, 8'000'000});

}  // namespace cox::planner
