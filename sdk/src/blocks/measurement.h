// BlockMeasurement is what one call of a block was seen to take, and BlockSink is who receives it:
// one measurement per call of cox::run, when its backward pass is over, or at once for a call
// without gradients. A session receives them and makes a BlockProfile of them. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"

namespace cox::detail {

enum class MeasureMode {
  off,
  times,  // two clock reads and about two hooks a call
  full,   // the saved bytes as well: a hook per saved tensor
};

struct BlockMeasurement {
  MeasureMode mode = MeasureMode::times;
  std::optional<BlockId> inside;   // the block whose call this one ran in, and is contained in
  std::uint64_t shape_key = 0;     // differs when dtypes or sizes of the inputs differ
  Seconds forward{};               // around the block's function
  Seconds backward{};              // 0 when no backward pass ran
  std::uint64_t input_bytes = 0;   // storages of the inputs, each once
  std::uint64_t output_bytes = 0;  // storages of the outputs that are not inputs
  std::uint64_t saved_bytes = 0;   // storages kept for backward, inputs included, parameters and
                                   // buffers not; 0 unless full
  std::uint64_t parameters = 0;    // elements, each once
};

// Returns the count, or the largest number of 32 bits where that is smaller.
inline std::uint32_t saturated(std::uint64_t count) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(count < kMost ? count : kMost);
}

// BlockEdge tells where the passes through a block begin and end. A block with several inputs ends
// its backward pass several times; the last one counts.
enum class BlockEdge : std::uint8_t { forward_begin, forward_end, backward_begin, backward_end };

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Called at the edge itself, for measured calls that are not inside another block's, on the
  // threads of block_measured(). REQUIRES: the receiver allocates no tensor.
  virtual void block_edge(BlockId, BlockEdge) noexcept {}
  // Called by the thread that trains or, while that one waits in backward(), by an engine's thread;
  // never twice at a time for one block. REQUIRES: the receiver is short and does not communicate.
  virtual void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept = 0;
};

// Returns a measurement in the form in which it travels. REQUIRES: block < blocks <= kMaxBlocks.
BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement);

}  // namespace cox::detail
