// OperatorMeter times the operators of a step that is sampled, and counts the bytes of their
// results and their FLOPs, by operator and block.
//
//   begin(call, block) -> the operator runs -> end(results) -> ... -> take(): rows of the step
//
// Whoever listens to the stream calls it, last before an operator runs and first after it, so that
// nothing else is in its time. What autograd does for an operator (its node, saving tensors) is.
// The clock is read on the thread that calls: where a device computes by itself, it says how long
// the launch took. It allocates, so it runs in sampled steps only. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
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

  // An operator is about to run in a visit of `block`. REQUIRES: end() or failed() follows before
  // the next begin(); operators that others call inside are not shown.
  void begin(const OperatorCall& call, BlockId block);
  void end(std::span<const c10::IValue> results);
  void failed() noexcept { running_.reset(); }
  bool is_running() const { return running_.has_value(); }

  // Returns what was counted since the last call, sorted by name and block, and forgets it.
  // REQUIRES: `names` has the name of every block, no two alike.
  std::vector<OperatorRow> take(std::span<const std::string> names);
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
  std::unordered_map<Key, OperatorRow, HashKey> sums_;
  std::optional<Running> running_;
};

}  // namespace cox::detail
