// What one step of one rank leaves behind for BlockHealth: the tensors at the boundaries of blocks
// (Boundary) and the calls between them (BlockCallRecord), in the order in which things happened.
// Figures only; no tensor is kept but the few numbers of a scan that is still on a device. Behind
// the mutex of the HealthLedger that owns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/units.h"
#include "sdk/src/precision/tensor_scan.h"

namespace cox::detail {

using Moment = std::uint64_t;  // counts what happened in a step, from 1 on; 0 = did not

// A tensor that goes into a block, comes out of one, or both. Shared by all its calls, so it is
// looked at once on the way forward, and its gradient once on the way back.
struct Boundary {
  PendingScan forward;
  std::vector<PendingScan> gradients;  // one for each backward pass over it
  Moment gradient_at = 0;              // the first of them
  bool is_small_asked = false;         // a block beside it computes in fp16
};

struct BlockCallRecord {
  BlockId block{};
  std::optional<std::size_t> outer;  // the call that this one ran in
  bool is_fp16 = false;
  Moment begin_at = 0;
  Moment end_at = 0;  // 0: its function threw
  std::vector<std::shared_ptr<Boundary>> inputs;
  std::vector<std::shared_ptr<Boundary>> outputs;
};

}  // namespace cox::detail
