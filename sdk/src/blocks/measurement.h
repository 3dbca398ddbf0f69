// BlockMeasurement is what the visits of a block took in one step, and BlockSink is who receives it
// when the step ends. A session receives them and makes a BlockProfile of them. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

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

}  // namespace cox::detail
