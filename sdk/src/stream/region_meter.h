// RegionMeter measures a region of operators: how long each takes, how many bytes it takes for
// itself, and how many are alive when backward comes back to it.
//
//   Tape (forward, backward) -> RegionMeter -> MeasuredRegion (operator_times.h) -> planner
//
// Thread rule: begin_operator() to Pause are for the thread that records; the rest is for any
// thread. Tapes and who reads it own it together.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "coordinator/planner/operator_graph.h"

namespace cox::detail {

struct MemoryLevel {
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  // since it was read before
};

struct OperatorCost {
  std::int64_t ns = 0;         // without what the tape itself does
  std::int64_t own_bytes = 0;  // as in planner::GraphOperator
};

class RegionMeter {
 public:
  using Clock = std::function<std::int64_t()>;
  using ReadMemory = std::function<MemoryLevel()>;

  // `now_ns` may wait for a device first. Without `memory` bytes are 0.
  explicit RegionMeter(Clock now_ns, ReadMemory memory = {});

  void begin_operator();
  OperatorCost end_operator();

  // Its lifetime is not time of the operator that runs. Of null it does nothing.
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

  // Backward asks for a tensor that operator number `op` of the region saved, has it, and has let
  // go of it. Below 0 it is nobody's.
  void asks(std::int32_t op) noexcept { note(op, Moment::asks); }
  void has(std::int32_t op) noexcept { note(op, Moment::has); }
  void lets_go(std::int32_t op) noexcept { note(op, Moment::lets_go); }

  // Ends the reading of memory, and returns what backward took about each operator.
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
  ReadMemory read_memory_;  // null: does not, or no longer
  std::vector<planner::BackwardLevels> backward_;
  std::int32_t running_ = -1;  // backward has what this operator saved
};

}  // namespace cox::detail
