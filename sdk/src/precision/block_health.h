// BlockHealth finds the block of this rank that an overflow arose in, and tells how close to its
// format's limits each block works. Calls of blocks report to its ledger while a step is open
// (HealthCall); when the step ends, a rule (block_health.cc) names the block to blame and
// BlockHealth fills the evidence. A session owns it; the thread that trains uses it. It does not
// communicate. Per step and rank:
//
//   health.begin_step(scale);          forward, backward ...
//   ballot.amax = health.amax_scaled_fp16();
//   health.parameter_gradients(nonfinite);      before reduction and unscaling
//   merge_into(evidence, health.end_step(rank));
//
// Cost: 1.4 us a call, and a look at each tensor between blocks on the way forward and at its
// gradient on the way back, 2 us each for 256 KiB in a cache (three times that beside fp16); on a
// device some ten small kernels each and one read a step.
//
// Underflow is counted for blocks that compute in fp16, in the scaled gradients at their
// boundaries: all values that are not 0 and below 2^-14, the least normal fp16 number; and, of an
// outgoing gradient that has such values or is 0 altogether though an incoming one is not, the
// zeros beyond the share of zeros that the incoming gradients have. Zeros of other gradients are
// those of ReLU and of masks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/units.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {

class BlockRegistry;

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
// because the figures are read when training has just emptied the caches.
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

// HealthLedger is where the calls of blocks write down what they saw of their tensors during a
// step: the tensors at the boundaries of blocks (Boundary) and the calls between them
// (BlockCallRecord), in the order in which things happened. HealthCall writes, BlockHealth reads.
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
  std::size_t begin_call(BlockId block, std::optional<std::size_t> outer);
  void input(std::size_t call, const at::Tensor& tensor);
  void computes_in_fp16(std::size_t call);  // REQUIRES: its inputs were given
  void output(std::size_t call, const at::Tensor& tensor);
  void end_call(std::size_t call);

  // Called by the hook on a boundary's gradient. `boundary` belongs to `step` and is not looked at
  // in another one.
  void gradient(Boundary& boundary, std::uint64_t step, const at::Tensor& gradient);

  // Returns the calls in the order in which they began, with all figures read. Waits for the device
  // where there is one. REQUIRES: the thread that trains calls it while no backward pass runs.
  const std::vector<BlockCallRecord>& read();

 private:
  struct Known {
    c10::weak_intrusive_ptr<at::TensorImpl> alive;  // no other tensor gets its address
    std::int64_t version = 0;
    Boundary* boundary = nullptr;
  };
  void begin_anew(bool is_open);
  // Returns null for a tensor without figures and for leaves that require gradients: parameters.
  Boundary* boundary_of(const at::Tensor& tensor);
  Boundary* with_gradient(const at::Tensor& tensor);
  Boundary* constant(const at::Tensor& tensor);

  std::atomic<bool> is_open_ = false;
  std::mutex mutex_;
  std::uint64_t step_ = 0;
  Moment now_ = 0;
  std::vector<PendingScan*> pending_;  // of read(); kept for its memory
  std::vector<BlockCallRecord> calls_;
  Boundaries boundaries_;
  std::unordered_map<const void*, Known> constants_;
};

struct HealthVerdict {
  enum class Where { nothing, forward, backward, outside };
  Where where = Where::nothing;
  std::optional<BlockId> block;  // to blame; outside: the nearest, where there is one
  std::int64_t values = 0;       // non-finite ones that arose there
  friend bool operator==(const HealthVerdict&, const HealthVerdict&) = default;
};

// StepTrouble is what the reducer knows of a step besides the calls.
struct StepTrouble {
  std::vector<std::int64_t> in_parameters;  // non-finite gradient values per block
  std::int64_t outside = 0;                 // in parameters of no block
  bool has_bad_loss = false;

  // Starts a step of a job with that many blocks. Takes nothing from the heap after the first one.
  void clear(std::size_t blocks) {
    in_parameters.assign(blocks, 0);
    outside = 0;
    has_bad_loss = false;
  }
};

class BlockHealth {
 public:
  // Listens to the blocks of `registry` until detach(). parameter_gradients() will speak of the
  // gradients of `parameters`, in that order.
  void attach(BlockRegistry& registry, std::span<const at::Tensor> parameters);
  void detach(BlockRegistry& registry);

  // Begins a step whose losses are multiplied by `scale`, > 0.
  void begin_step(float scale);
  // Adds the non-finite values in the gradient of each parameter, before reduction. Optional.
  void parameter_gradients(std::span<const std::int64_t> nonfinite);
  // Notes a loss of this step, of any micro-batch.
  void loss(double value);
  // Returns the largest finite scaled gradient, at a boundary or of a parameter, of blocks that
  // computed in fp16 in this step; 0 = none. Reads the gradients of such blocks' parameters once,
  // near the speed of memory; waits for the device where there is one. REQUIRES: gradients are not
  // divided by anything yet.
  float amax_scaled_fp16();
  // Ends the step. Returns one entry a block, valid until the next step; none when no step is open.
  std::span<const BlockEvidence> end_step(RankId rank);

  const HealthVerdict& verdict() const { return verdict_; }  // of the last step that ended

 private:
  float amax_of_parameters(const std::vector<bool>& is_in_fp16) const;
  void note(const BlockCallRecord& call, RankId rank);
  void blame(RankId rank);

  std::shared_ptr<HealthLedger> ledger_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<BlockId>> owners_;  // of each
  float scale_ = 1;
  StepTrouble trouble_;
  HealthVerdict verdict_;
  std::vector<BlockEvidence> evidence_;
};

// Returns the blocks that each parameter belongs to: of nested blocks the innermost, of several
// that share it each. One entry a parameter.
std::vector<std::vector<BlockId>> owners_of(const BlockRegistry& registry,
                                            std::span<const at::Tensor> parameters);

}  // namespace cox::detail
