// OperatorMeter times the operators of a step that is sampled, and counts the bytes of their
// results and their FLOPs, by operator and block.
//
//   begin(call, block) -> the operator runs -> end(results) -> ... -> add_to(table)
//
// Whoever listens to the stream calls it, last before an operator runs and first after it, so that
// nothing else is in its time. What autograd does for an operator (its node, saving tensors) is.
// The clock is read on the thread that calls: where a device computes by itself, it says how long
// the launch took. begin() and end() allocate, so it runs in sampled steps only. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "coordinator/core/operator_flops.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/core/units.h"
#include "sdk/src/stream/operator_stream.h"

namespace cox::detail {

// Returns the sizes of the tensors among a call's arguments; `name` refers to the operator's own.
OperatorShapes shapes_of(const OperatorCall& call);

class OperatorMeter {
 public:
  // Returns nanoseconds of a clock that never goes back.
  using Clock = std::int64_t (*)();
  explicit OperatorMeter(Clock now) : now_(now) {}

  // Whether whoever listens to the stream begins calls from here on. Called between steps.
  enum class Counting : bool { off, on };
  void count(Counting counting) { is_on_ = counting == Counting::on; }
  bool is_on() const { return is_on_; }

  // An operator is about to run in a visit of `block`. REQUIRES: end() or failed() follows before
  // the next begin(); operators that others call inside are not shown.
  void begin(const OperatorCall& call, BlockId block);
  void end(std::span<const c10::IValue> results);
  void failed() noexcept { running_.reset(); }
  bool is_running() const { return running_.has_value(); }

  // Adds what was counted since the last call to the table's rows and, by block, to `flops`, and
  // forgets it; returns whether there was anything. Allocates only for rows that the table does not
  // have. REQUIRES: the table has every block, no two of one name, and `flops` a number for each.
  bool add_to(OperatorTable& table, std::span<double> flops);
  void forget() { sums_.clear(); }

 private:
  struct Key {
    const c10::OperatorName* name;  // the dispatcher's own
    BlockId block;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.name) * 31 + key.block.value();
    }
  };
  struct Running {
    Key key;
    OperatorShapes shapes;
    std::vector<const void*> storages{};  // of its arguments
    std::int64_t since_ns = 0;
  };

  const Clock now_;
  std::unordered_map<Key, OperatorRow, HashKey> sums_;  // without name and block
  std::optional<Running> running_;
  bool is_on_ = false;
};

}  // namespace cox::detail
