// HealthLedger is where it is written down what calls of blocks saw of their tensors during a step
// (VisitHealth, numerics_watch.h), for BlockHealth to read when it ends. See BlockHealth for who
// owns it, what it costs and which threads use it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {

using Moment = std::uint64_t;  // counts what happened in a step, from 1 on; 0 = did not happen

// Boundary is a tensor that goes into a block, comes out of one, or both. All its calls share it,
// so it is looked at once on the way forward, and its gradient once on the way back.
struct Boundary {
  PendingScan forward;
  c10::SmallVector<PendingScan, 1> gradients;  // one for each backward pass over it
  Moment gradient_at = 0;                      // the first of them
  bool is_small_asked = false;                 // a block beside it computes in fp16
};

// Boundaries keeps those of one step after another: a place keeps its address and is used again,
// because the figures are read when training has just emptied the caches. Swapped, they keep their
// addresses, too.
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
  bool is_fp16 = false;
  Moment begin_at = 0;
  Moment end_at = 0;  // 0: it did not come to its end
  BoundaryList inputs;
  BoundaryList outputs;
};

// HealthLedger is where the calls of blocks write down what they saw of their tensors during a
// step: the tensors at the boundaries of blocks (Boundary) and the calls between them
// (BlockCallRecord), in the order in which things happened. VisitHealth writes, BlockHealth reads.
// The ledger scans each boundary once and hooks its gradient; by that hook it knows the tensor
// again, and constants by address and version, for the length of the step. It holds figures only;
// no tensor is kept but the few figures of a scan that is still on a device.
//
// BlockHealth and the hooks on the tensors own it together; the hooks may outlive it, and a hook of
// an earlier step does nothing. The thread that trains writes in forward, and an engine's thread
// also writes gradients. Nothing that it does throws into either.
class HealthLedger : public std::enable_shared_from_this<HealthLedger> {
 public:
  // Begins a step and forgets what is left of the one before.
  void open() { begin_anew(true); }
  // Ends the step: nothing is written any more.
  void close() { begin_anew(false); }
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  // Begins a call of a block in the open step and returns its number for the following functions.
  std::size_t begin_call(BlockId block);
  // A tensor that is given twice counts once. input() returns how many inputs that added.
  std::size_t input(std::size_t call, const at::Tensor& tensor);
  // The newest `count` inputs are none of this call's.
  void take_back(std::size_t call, std::size_t count);
  void output(std::size_t call, const at::Tensor& tensor);
  void computes_in_fp16(std::size_t call);
  void end_call(std::size_t call);

  // Called by the hook on a boundary's gradient. `boundary` belongs to `step` and is not looked at
  // in another one.
  void gradient(Boundary& boundary, std::uint64_t step, const at::Tensor& gradient);

  // Returns the calls in the order in which they began; figures may be on a device yet. REQUIRES:
  // as read().
  const std::vector<BlockCallRecord>& calls() const { return calls_; }
  // Returns the calls in the order in which they began, with all figures read. Waits for the device
  // where there is one. REQUIRES: the thread that trains calls it while no backward pass runs.
  const std::vector<BlockCallRecord>& read();

  // The calls of a step and the figures that they point to, of which some are still on a device.
  struct Page {
    std::vector<BlockCallRecord> calls;
    Boundaries boundaries;
    PendingRead figures;
    // Completes the figures if the device has got that far. Never waits.
    bool is_complete() { return figures.finish(); }
  };
  // Returns whether figures of the open step are on a device, so that read() would wait for it.
  bool is_on_device();
  // Hands over what the open step wrote down, and lets its figures set out from the device. The
  // step is closed. REQUIRES: as read().
  Page take();

 private:
  struct Known {
    c10::weak_intrusive_ptr<at::TensorImpl> alive;  // no other tensor gets its address
    std::int64_t version = 0;
    Boundary* boundary = nullptr;
  };
  void begin_anew(bool is_open);
  static std::size_t add(BlockCallRecord& call, BoundaryList BlockCallRecord::*side,
                         Boundary* boundary);
  // Returns null for a tensor without figures and for leaves that require gradients: parameters.
  Boundary* boundary_of(const at::Tensor& tensor);
  Boundary* with_gradient(const at::Tensor& tensor);
  Boundary* constant(const at::Tensor& tensor);

  std::atomic<bool> is_open_ = false;
  // Returns the scans of all calls. REQUIRES: mutex_ is held.
  const std::vector<PendingScan*>& scans();

  std::mutex mutex_;
  std::uint64_t step_ = 0;
  Moment now_ = 0;
  std::vector<PendingScan*> pending_;  // of scans(); kept for its memory
  std::vector<BlockCallRecord> calls_;
  Boundaries boundaries_;
  std::unordered_map<const void*, Known> constants_;
};

}  // namespace cox::detail
