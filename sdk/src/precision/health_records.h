// What one step of one rank leaves behind for BlockHealth: the tensors at the boundaries of blocks
// (Boundary) and the calls between them (BlockCallRecord), in the order in which things happened.
// Figures only; no tensor is kept but the few numbers of a scan that is still on a device. They lie
// side by side in memory that every step uses again, because they are read when training has just
// emptied the caches. Behind the mutex of the HealthLedger that owns them.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "coordinator/core/units.h"
#include "sdk/src/precision/tensor_scan.h"

namespace cox::detail {

using Moment = std::uint64_t;  // counts what happened in a step, from 1 on; 0 = did not

// A tensor that goes into a block, comes out of one, or both. Shared by all its calls, so it is
// looked at once on the way forward, and its gradient once on the way back.
struct Boundary {
  PendingScan forward;
  c10::SmallVector<PendingScan, 1> gradients;  // one for each backward pass over it
  Moment gradient_at = 0;                      // the first of them
  bool is_small_asked = false;                 // a block beside it computes in fp16
};

// The boundaries of one step after another: a place keeps its address, and is used again.
class Boundaries {
 public:
  Boundary& add() {
    if (used_ == places_.size()) places_.emplace_back();
    return places_[used_++];
  }
  void clear() {
    for (; used_ > 0; --used_) places_[used_ - 1] = Boundary{};
  }

 private:
  std::deque<Boundary> places_;
  std::size_t used_ = 0;
};

using BoundaryList = c10::SmallVector<Boundary*, 2>;

struct BlockCallRecord {
  BlockId block{};
  std::optional<std::size_t> outer;  // the call that this one ran in
  bool is_fp16 = false;
  Moment begin_at = 0;
  Moment end_at = 0;  // 0: its function threw
  BoundaryList inputs;
  BoundaryList outputs;
};

}  // namespace cox::detail
