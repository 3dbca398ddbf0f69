// HealthLedger records figures of the tensors that go in and out of the calls of blocks in a step.
// VisitHealth (numerics_watch.h) writes, and BlockHealth reads at the end of the step. BlockHealth
// and the hooks on tensors share ownership. A hook may outlive BlockHealth, and does nothing in a
// later step. The training thread writes in forward; a thread of autograd's engine also writes
// gradients.
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

using Moment = std::uint64_t;  // number of an event in a step, from 1 on; 0: did not happen

// Boundary is a tensor at a border between blocks: an input, an output, or both. All calls with the
// tensor share one Boundary. So the tensor is scanned once in forward, and its gradient once in
// backward.
struct Boundary {
  PendingScan forward;
  c10::SmallVector<PendingScan, 1> gradients;  // one for each backward pass over the tensor
  Moment gradient_at = 0;                      // when the first gradient arrived
  bool is_small_asked = false;                 // scan gradients for values that fp16 loses, too
};

// Boundaries holds the boundaries of one step. clear() keeps the memory for the next step: fresh
// memory would miss the processor's caches more often, which training has just emptied. Addresses
// are stable, also after a swap.
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
  Moment end_at = 0;  // 0: the call did not end
  BoundaryList inputs;
  BoundaryList outputs;
};

// HealthLedger holds the boundaries (Boundary) and the calls between them (BlockCallRecord), in
// order of time. The ledger scans each boundary once, and hooks the tensor's gradient. The hook
// also shows that a tensor was scanned before in the step. Tensors without a gradient are
// recognised by address and version. The ledger stores figures, no tensors; figures of a scan on a
// device may still be there.
class HealthLedger : public std::enable_shared_from_this<HealthLedger> {
 public:
  // Begins a step and clears the one before.
  void open() { begin_anew(true); }
  // Ends the step: later writes do nothing.
  void close() { begin_anew(false); }
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  // Begins a call of a block in the open step. Returns the call's number for the functions below.
  std::size_t begin_call(BlockId block);
  // Records an input or output of the call. A tensor that the call has already is not added again.
  // input() returns the number of inputs added: 0 or 1.
  std::size_t input(std::size_t call, const at::Tensor& tensor);
  // Removes the newest `count` inputs from the call.
  void take_back(std::size_t call, std::size_t count);
  void output(std::size_t call, const at::Tensor& tensor);
  void computes_in_fp16(std::size_t call);
  void end_call(std::size_t call);

  // Records a boundary's gradient. Called by the hook on the gradient, on any thread. Never throws.
  // Does nothing if `step`, the step of `boundary`, is not the open one.
  void gradient(Boundary& boundary, std::uint64_t step, const at::Tensor& gradient);

  // Returns the calls in order of their beginning; figures may still be on a device. REQUIRES: as
  // for read().
  const std::vector<BlockCallRecord>& calls() const { return calls_; }
  // Returns the calls in order of their beginning, with all figures. Waits for a device. REQUIRES:
  // called on the training thread while no backward pass runs.
  const std::vector<BlockCallRecord>& read();

  // Page holds a step's calls and the figures that they point to; some may still be on a device.
  struct Page {
    std::vector<BlockCallRecord> calls;
    Boundaries boundaries;
    PendingRead figures;
    // Completes the figures if they have arrived. Never waits.
    bool is_complete() { return figures.finish(); }
  };
  // Returns whether figures of the open step are on a device, so that read() would wait.
  bool is_on_device();
  // Moves out the records of the open step, starts copying figures from the device, and closes the
  // step. REQUIRES: as for read().
  Page take();

 private:
  struct Known {
    c10::weak_intrusive_ptr<at::TensorImpl> alive;  // keeps the address from being reused
    std::int64_t version = 0;
    Boundary* boundary = nullptr;
  };
  void begin_anew(bool is_open);
  static std::size_t add(BlockCallRecord& call, BoundaryList BlockCallRecord::*side,
                         Boundary* boundary);
  // Returns null for a tensor that is undefined or not of floating type, and for a leaf that
  // requires gradients (a parameter).
  Boundary* boundary_of(const at::Tensor& tensor);
  Boundary* with_gradient(const at::Tensor& tensor);
  Boundary* constant(const at::Tensor& tensor);

  std::atomic<bool> is_open_ = false;
  // Returns the scans of all calls. REQUIRES: mutex_ is held.
  const std::vector<PendingScan*>& scans();

  std::mutex mutex_;
  std::uint64_t step_ = 0;
  Moment now_ = 0;
  std::vector<PendingScan*> pending_;  // result of scans(); kept for its memory
  std::vector<BlockCallRecord> calls_;
  Boundaries boundaries_;
  std::unordered_map<const void*, Known> constants_;
};

}  // namespace cox::detail
