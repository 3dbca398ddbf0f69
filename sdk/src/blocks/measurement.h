// BlockMeasurement is the cost of a block's visits in one step. A BlockSink receives it at the end
// of the step. A session receives the measurements (BlockMeasurements) and makes BlockProfiles.
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
  times,  // two clock reads a visit, and a hook for each saved tensor
  full,   // the saved bytes as well
};

struct BlockMeasurement {
  MeasureMode mode = MeasureMode::times;
  std::uint64_t shape_key = 0;  // differs if type or sizes of a visit's first operand differ
  Seconds forward{};
  Seconds backward{};             // 0 if no backward pass ran
  std::uint64_t saved_bytes = 0;  // storages kept for backward, without parameters; 0 unless full
  std::uint64_t parameters = 0;   // elements, each once
};

Nanoseconds steady_now();

// Returns the count, at most the largest number of 32 bits.
inline std::uint32_t saturated(std::uint64_t count) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(count < kMost ? count : kMost);
}

// BlockEdge is the beginning or end of a pass through a block's region.
enum class BlockEdge : std::uint8_t { forward_begin, forward_end, backward_begin, backward_end };

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Called at the edge itself, on the thread that passes it: autograd's in backward. REQUIRES: the
  // receiver allocates no tensor.
  virtual void block_edge(BlockId, BlockEdge) noexcept {}
  // Called on the training thread. REQUIRES: the receiver is short and does not communicate.
  virtual void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept = 0;
};

// Returns a measurement in the form for sending. REQUIRES: block < blocks <= kMaxBlocks.
BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement);

// BlockMeasurements holds the costs of a rank's blocks: the last measurements of visits, and FLOPs.
// The class chooses the measurements of each step, and makes a profile for the coordinator of every
// block with new costs. Training thread; measurements also come from autograd's.
class BlockMeasurements final : public BlockSink {
 public:
  // Number of steps that measure everything; after these, one in kTimesEverySteps measures times.
  static constexpr std::uint64_t kFullSteps = 2;
  static constexpr std::uint64_t kTimesEverySteps = 32;

  // Sets the number of blocks. Blocks from before keep their costs.
  void resize(std::size_t blocks);
  // Returns the mode of the coming step.
  MeasureMode next_mode();
  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override;

  // Writes the last measured seconds of every block in a step; 0 before the first measurement.
  // REQUIRES: an entry for each block.
  void read_times(std::span<BlockTime> times);
  // Sets the FLOPs of every block in a step, forward and backward, for later profiles.
  void set_flops(std::span<const double> flops);
  // Returns a profile not sent yet, or nothing. REQUIRES: a name for each block.
  Fragment next(std::span<const std::string> names);

 private:
  struct Known {
    BlockMeasurement measurement;
    double flops = 0;          // in a step; 0 = unknown
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
