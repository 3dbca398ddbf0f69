// BlockMeasurement is what the visits of a block took in one step, and BlockSink is who receives it
// when the step ends. A session receives them (BlockMeasurements) and makes a BlockProfile of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"

namespace cox::detail {

enum class MeasureMode {
  off,
  times,  // two clock reads a visit, and a hook per saved tensor
  full,   // the saved bytes as well
};

struct BlockMeasurement {
  MeasureMode mode = MeasureMode::times;
  std::uint64_t shape_key = 0;  // differs when type or sizes of a visit's first operand differ
  Seconds forward{};
  Seconds backward{};             // 0 when no backward pass ran
  std::uint64_t saved_bytes = 0;  // storages kept for backward, parameters not; 0 unless full
  std::uint64_t parameters = 0;   // elements, each once
};

Nanoseconds steady_now();

// Returns the count, or the largest number of 32 bits where that is smaller.
inline std::uint32_t saturated(std::uint64_t count) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(count < kMost ? count : kMost);
}

// BlockEdge tells where the passes through a block's region begin and end.
enum class BlockEdge : std::uint8_t { forward_begin, forward_end, backward_begin, backward_end };

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Called at the edge itself, on the thread that passes it: autograd's in backward. REQUIRES: the
  // receiver allocates no tensor.
  virtual void block_edge(BlockId, BlockEdge) noexcept {}
  // Called by the thread that trains. REQUIRES: the receiver is short and does not communicate.
  virtual void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept = 0;
};

// Returns a measurement in the form in which it travels. REQUIRES: block < blocks <= kMaxBlocks.
BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement);

// BlockMeasurements knows what the blocks of a rank cost: what their visits took when they were
// measured last, and their FLOPs. It chooses what each step measures, and makes a profile for the
// coordinator of every block whose costs are news. Training thread; measurements also come from
// autograd's.
class BlockMeasurements final : public BlockSink {
 public:
  // Steps that measure everything, then one in kTimesEverySteps measures times.
  static constexpr std::uint64_t kFullSteps = 2;
  static constexpr std::uint64_t kTimesEverySteps = 32;

  // Sets the number of blocks. Those that were there before keep their costs.
  void resize(std::size_t blocks);
  // Returns what the coming step measures.
  MeasureMode next_mode();
  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override;

  // Writes the seconds of every block in a step, as they were measured last; 0 before that.
  // REQUIRES: an entry a block.
  void read_times(std::span<BlockTime> times);
  // Sets the FLOPs of every block in a step, forward and backward, for the profiles to come.
  void set_flops(std::span<const double> flops);
  // Returns a profile that was not sent yet, or nothing. REQUIRES: a name a block.
  Fragment next(std::span<const std::string> names);

 private:
  struct Known {
    BlockMeasurement measurement;
    double flops = 0;          // of a step; 0 = not known
    bool is_complete = false;  // measured in full
    bool is_unsent = false;
  };

  std::uint64_t steps_ = 0;
  std::uint64_t full_until_ = kFullSteps;
  std::size_t next_ = 0;

  std::mutex mutex_;  // guards the following
  std::vector<Known> known_;
  bool new_shapes_ = false;
};

}  // namespace cox::detail
