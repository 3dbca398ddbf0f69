// RegionMeter measures the operators of a region: the time, the bytes that an operator allocates
// for itself, and the live bytes when backward returns to the operator.
//
//   Tape (forward, backward) -> RegionMeter -> MeasuredRegion (operator_times.h) -> planner
//
// Thread rule: the recording thread calls begin_operator() to Pause; any thread calls the rest. The
// tapes and the readers own a meter together.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::detail {

struct MemoryLevel {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // since the last reading
};

struct OperatorCost {
  std::int64_t ns = 0;         // without the tape's own work
  std::int64_t own_bytes = 0;  // as in planner::GraphOperator
};

class RegionMeter {
 public:
  using Clock = std::function<std::int64_t()>;
  using ReadMemory = std::function<MemoryLevel()>;

  // `now_ns` may wait for a device first. Without `memory` all bytes are 0.
  explicit RegionMeter(Clock now_ns, ReadMemory memory = {});

  void begin_operator();
  OperatorCost end_operator();

  // Excludes its own lifetime from the running operator's time. A null meter makes it a no-op.
  class Pause {
   public:
    explicit Pause(RegionMeter* meter)
        : meter_(meter), started_ns_(meter != nullptr ? meter->now_ns_() : 0) {}
    ~Pause() {
      if (meter_ != nullptr) meter_->paused_ns_ += meter_->now_ns_() - started_ns_;
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    RegionMeter* const meter_;
    const std::int64_t started_ns_;
  };

  // Record the three moments of a saved tensor of operator `op` in backward: requested, unpacked,
  // released. op < 0: no operator of the region saved it.
  void asks(std::int32_t op) noexcept { note(op, Moment::asks); }
  void has(std::int32_t op) noexcept { note(op, Moment::has); }
  void lets_go(std::int32_t op) noexcept { note(op, Moment::lets_go); }

  // Stops reading memory, and returns the memory that backward took for each operator.
  std::vector<planner::BackwardLevels> end();

 private:
  enum class Moment : std::uint8_t { asks, has, lets_go };

  void note(std::int32_t op, Moment moment) noexcept;
  planner::BackwardLevels& levels_of(std::int32_t op, std::int64_t live_bytes);

  const Clock now_ns_;
  std::int64_t started_ns_ = 0;
  std::int64_t paused_ns_ = 0;
  std::int64_t live_bytes_ = 0;  // when the operator began

  std::mutex mutex_;        // guards what follows
  ReadMemory read_memory_;  // null: off, or ended
  std::vector<planner::BackwardLevels> backward_;
  std::int32_t running_ = -1;  // saver of the tensor that backward has
};

}  // namespace cox::detail
