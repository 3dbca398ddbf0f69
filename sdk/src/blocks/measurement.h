// What is measured of one call of a block, and who is told. One measurement per call of cox::run:
// with gradients when its backward pass is over, without them at once. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"

namespace cox::detail {

enum class MeasureMode {
  off,
  times,  // two clock reads and about two hooks a call
  full,   // also what autograd saves: a hook per saved tensor
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

// Where the passes through a block begin and end. A block with several inputs ends its backward
// pass several times; the last one counts.
enum class BlockEdge : std::uint8_t { forward_begin, forward_end, backward_begin, backward_end };

class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // At the moment itself, for measured calls that are not inside another block's. On the threads of
  // block_measured(); allocates no tensor.
  virtual void block_edge(BlockId, BlockEdge) noexcept {}
  // Comes from the thread that trains or, while that one waits in backward(), from an engine's
  // thread; never two at a time for one block. Short, does not throw, does not communicate.
  virtual void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept = 0;
};

// The form in which a measurement travels. Requires: block < blocks <= kMaxBlocks.
BlockProfile block_profile(BlockId block, std::size_t blocks, std::string_view name,
                           const BlockMeasurement& measurement);

}  // namespace cox::detail
