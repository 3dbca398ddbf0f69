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

#include <array>
#include <cstddef>
#include <cstdint>
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

// Slice is what backward runs again under a set of kept storages.
struct Slice {
  std::vector<std::int32_t> operators;  // in the order in which they run; once for each run
  std::int64_t ns = 0;
  // Most alive at once of what was made again: results, found values, masks that were made whole.
  std::int64_t bytes = 0;
  std::int64_t bytes_with_held = 0;  // most alive at once of that and of what is kept
  // The same with gradients, each as large as its storage: of what an operator made while its
  // backward waits for a replay, and also of what it read while it runs.
  std::int64_t bytes_with_gradients = 0;
};
// Backward is taken to hold `gradient_copies` of each gradient. REQUIRES: a valid graph;
// kept.size()
// == graph.storages.size().
Slice slice(const OperatorGraph& graph, const KeptSet& kept, std::int64_t gradient_copies = 1);
inline constexpr std::array<std::int64_t, 3> kGradientCopies = {1, 2, 4};

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

// Returns sets of kept storages with which little is alive at once while backward runs: for each of
// a few guesses at what the backward of an operator takes for itself (kGradientCopies) the one with
// the least Slice::bytes_with_gradients. Which is best is for a measurement to say. They are found
// from none and from all kept, by changes of one or two storages for as long as one helps, so a
// better set that differs in more may be missed; and by bytes alone, so graphs that differ in times
// have equal answers. None twice. REQUIRES: a valid graph.
// `limits` are of each guess.
std::vector<StoragePoint> least_alive(const OperatorGraph& graph,
                                      const StorageFrontLimits& limits = {1 << 14, 4'000'000});

}  // namespace cox::planner
