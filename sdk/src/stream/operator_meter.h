// OperatorMeter times the operators of a sampled step, and counts the bytes of results and the
// FLOPs, by operator and block.
//
//   begin(call, block) -> the operator runs -> end(results) -> ... -> add_to(table)
//
// The stream's listener calls begin() last before an operator runs, and end() first after it, so
// that only the operator is timed. Autograd's work for the operator (its node, saving tensors)
// counts too. The clock is read on the calling thread; for an asynchronous device it measures the
// launch. begin() and end() allocate, so a meter runs in sampled steps only. One thread.
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

// Returns the sizes of the tensors among a call's arguments. `name` refers to the operator's name.
OperatorShapes shapes_of(const OperatorCall& call);

class OperatorMeter {
 public:
  // Returns nanoseconds of a monotonic clock.
  using Clock = std::int64_t (*)();
  explicit OperatorMeter(Clock now) : now_(now) {}

  // Turns counting on or off. The listener calls begin() while counting is on. Called between
  // steps.
  enum class Counting : bool { off, on };
  void count(Counting counting) { is_on_ = counting == Counting::on; }
  bool is_on() const { return is_on_; }

  // Begins an operator in a visit of `block`. REQUIRES: end() or failed() follows before the next
  // begin(). The stream does not show nested operators.
  void begin(const OperatorCall& call, BlockId block);
  void end(std::span<const c10::IValue> results);
  void failed() noexcept { running_.reset(); }
  bool is_running() const { return running_.has_value(); }

  // Adds the counts since the last call to the table's rows and, by block, to `flops`; then clears
  // the counts. Returns whether there were any. Allocates only for rows missing in the table.
  // REQUIRES: the table has every block, no two with one name; `flops` has a number for each block.
  bool add_to(OperatorTable& table, std::span<double> flops);
  void forget() { sums_.clear(); }

 private:
  struct Key {
    const c10::OperatorName* name;  // owned by the dispatcher
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
    std::vector<const void*> storages{};  // the arguments' storages
    std::int64_t since_ns = 0;
  };

  const Clock now_;
  std::unordered_map<Key, OperatorRow, HashKey> sums_;  // rows without name and block
  std::optional<Running> running_;
  bool is_on_ = false;
};

}  // namespace cox::detail
